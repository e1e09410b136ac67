"""Rounds of a ragged model, chains and trees: logits from its cache are those of passes over each row alone."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import ragged_cache
from hf_speculative.models.ragged_cache import in_rows
from hf_speculative.models.recording import RecordingModel
from hf_speculative.models.verified_types import TESTED_TYPES
from hf_speculative.types import Batch, along_path
from tests.support import tiny, trees
from tests.support.cases import types_and_attentions
from tests.support.rounds import check_rounds


def test_the_tested_types_are_tested():
    assert set(tiny.ARCHITECTURES) == TESTED_TYPES


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type, attention):
    """Past a window of 8 as well."""
    check_rounds(tiny.build(model_type, attention=attention), rtol=1e-4, atol=1e-4)


def test_the_index_of_slots_is_made_once_a_pass(target, monkeypatch):
    calls = []
    monkeypatch.setattr(ragged_cache, "in_rows", lambda *args: calls.append(args) or in_rows(*args))
    with hs.record() as stats:
        hs.generate(target, **tiny.prompts(3), draft_model="ngram", max_new_tokens=20, do_sample=False)
    assert 0 < len(calls) <= stats.num_target_forwards < len(calls) * target.config.num_hidden_layers


def test_dropout_of_a_model_in_training_mode_does_not_reach_the_draft(target):
    model = tiny.build("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    draft = tiny.noisy_copy(model, noise=0).train()
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(1), draft_model=draft, max_new_tokens=20, num_draft_tokens=3, do_sample=False)
    assert stats.draft_acceptance_rate == 1 and draft.training


@pytest.mark.parametrize("model_type, attention", types_and_attentions())
def test_logits_of_nodes_equal_those_of_their_paths(model_type, attention):
    """Past a window of 8 as well."""
    trees.check_trees(tiny.build(model_type, attention=attention), rtol=1e-4, atol=1e-4)


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
