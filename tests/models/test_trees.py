"""A pass over a tree of draft tokens: each node sees its own path and nothing else, and what is kept is a chain again."""

import random

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import RaggedModel
from hf_speculative.models.recording import RecordingModel
from hf_speculative.types import Batch, Tree, along_path
from tests.support import tiny, trees
from tests.support.cases import types_and_attentions


@torch.no_grad()
@pytest.mark.parametrize("model_type, attention", types_and_attentions())
def test_logits_of_nodes_equal_those_of_their_paths(model_type, attention):
    """Random branching trees, random paths kept, rows leaving, past a window of 8; a tree fed at once or in two passes."""
    model = tiny.build(model_type, attention=attention)
    inputs = tiny.prompts(4)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch, cached = Batch(inputs["input_ids"], padding, max_length=60), RaggedModel(model)
    generator = random.Random(0)
    cached.prefill(batch)
    for round in range(6):
        num_rows, n = len(batch.rows), generator.randint(3, 8)
        parents = [trees.random_parents(n, generator) for _ in range(num_rows)]
        draft = hs.Draft(
            torch.tensor([[generator.randrange(1, tiny.VOCAB) for _ in range(n)] for _ in range(num_rows)]),
            None,
            torch.full((num_rows,), n),
            torch.tensor(parents),
        )
        if round % 2:  # the first nodes first, as a drafter does that grows the tree
            first = generator.randint(1, n - 1)
            batch.put(draft.tokens[:, :first], tree=Tree(draft.parents[:, :first], first))
            cached.logits(batch, ahead=first, num_last=1)
            batch.put(draft.tokens, tree=draft.tree)
            found, known = cached.logits(batch, ahead=n, num_last=n - first), range(first, n)
        else:
            batch.put(draft.tokens, tree=draft.tree)
            found, known = cached.logits(batch, ahead=n, num_last=n + 1), range(-1, n)
        paths = []
        for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
            for column, node in enumerate(known):
                path = trees.path_to(parents[row], node)
                ids = [*batch.tokens[row, pad:length].tolist(), *draft.tokens[row, path].tolist()]
                fresh = model(torch.tensor([ids])).logits[0, -1]
                torch.testing.assert_close(found[row, column], fresh, rtol=1e-4, atol=1e-4)
            paths.append(trees.path_to(parents[row], generator.randint(-1, n - 1)))
        path = torch.tensor([path + [0] * (n - len(path)) for path in paths])
        verdict = hs.Verdict(
            torch.tensor([len(path) for path in paths]), torch.randint(1, tiny.VOCAB, (num_rows,)), path=path
        )
        chain, verdict, () = along_path(draft, verdict)
        batch.put(chain.tokens)
        batch.append(chain, verdict)
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2, 3])


@torch.no_grad()
def test_recorded_states_move_with_the_path():
    model = tiny.llama()
    inputs = tiny.prompts(3)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch, cached = Batch(inputs["input_ids"], padding, max_length=40), RecordingModel(model, (1, -1))
    cached.prefill(batch)
    parents = [[-1, -1, 1, 1, 3]] * 3
    draft = hs.Draft(torch.randint(1, tiny.VOCAB, (3, 5)), None, torch.full((3,), 5), torch.tensor(parents))
    batch.put(draft.tokens, tree=draft.tree)
    cached.logits(batch, ahead=5, num_last=6)
    path = torch.tensor([[1, 3, 4], [1, 2, 0], [0, 0, 0]])
    verdict = hs.Verdict(torch.tensor([3, 2, 1]), torch.tensor([5, 6, 7]), path=path)
    chain, verdict, () = along_path(draft, verdict)
    batch.put(chain.tokens)
    batch.append(chain, verdict)
    cached.rollback(batch)
    for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
        fresh = model(batch.tokens[row : row + 1, pad : length - 1], output_hidden_states=True).hidden_states
        expected = torch.cat([fresh[1][0], fresh[-1][0]], -1)
        found = cached.hidden_states(torch.arange(length - pad - 1).expand(3, -1))[row]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
