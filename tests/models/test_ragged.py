"""Rounds of a ragged model, chains and trees: logits from its cache are those of passes over each row alone."""

import gc
import itertools
from collections import Counter
from random import Random
from unittest.mock import Mock

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import RaggedModel, prompts, ragged, ragged_cache
from hf_speculative.models.prompts import A_PASS, by_length, read
from hf_speculative.models.ragged_cache import RaggedCache, in_rows
from hf_speculative.models.recording import RecordingModel
from hf_speculative.models.verified_types import TESTED
from hf_speculative.types import Batch, along_path
from tests.architectures.check import build
from tests.support import tiny, trees
from tests.support.cases import slow_but, types_and_attentions
from tests.support.rounds import append, assert_fresh, begun, check_rounds


def test_the_tested_types_are_tested():
    assert set(tiny.ARCHITECTURES) == set(TESTED["ragged"])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type, attention):
    """Past a window of 8 as well."""
    check_rounds(tiny.build(model_type, attention=attention), rtol=1e-4, atol=1e-4)


def unequal_prompts(*lengths: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, tiny.VOCAB, (len(lengths), max(lengths)))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, -length:] = 1
    return {"input_ids": ids * mask, "attention_mask": mask}


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


def partitions(rows: list[int]):
    """All ways to read rows in passes."""
    if not rows:
        yield []
        return
    for rest in partitions(rows[1:]):
        yield [rows[:1], *rest]
        for index, group in enumerate(rest):
            yield [*rest[:index], [rows[0], *group], *rest[index + 1 :]]


def test_prompts_are_read_in_the_passes_that_take_the_least_time():
    random = Random(0)

    def columns(groups: list[list[int]], lengths: list[int]) -> int:
        last = A_PASS if len(groups) > 1 else 0
        return last + sum(A_PASS + len(group) * max(lengths[row] for row in group) for group in groups)

    nums = set()
    for _ in range(60):
        lengths = [random.choice([3, 40, 90, 200, 1000]) + random.randrange(9) for _ in range(random.randrange(1, 7))]
        found = by_length(lengths, torch.device("cpu")) or [list(range(len(lengths)))]
        assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
        assert columns(found, lengths) == min(columns(one, lengths) for one in partitions(list(range(len(lengths)))))
        nums.add(len(found))
    assert nums >= {1, 2, 3}


@pytest.mark.parametrize("model_type", slow_but(tiny.ARCHITECTURES, "llama", "gemma3_text", "gpt2"))
def test_rounds_after_prompts_that_were_read_apart(model_type, monkeypatch):
    monkeypatch.setattr(prompts, "A_PASS", 0)
    monkeypatch.setattr(ragged, "read", passes := Mock(wraps=read))
    check_rounds(tiny.build(model_type), rtol=1e-4, atol=1e-4)
    assert passes.call_count == 4


def test_a_draft_that_begins_after_a_tree_reads_prompts_apart(monkeypatch):
    """The path that was kept is of the whole batch."""
    monkeypatch.setattr(prompts, "A_PASS", 0)
    model = tiny.llama()
    batch, cached, random = begun(model)
    batch.put(1 + random(tiny.VOCAB - 1, 4, 2))
    append(batch, batch.tokens[:, 7:9], torch.tensor([1, 0, 2, 1]), 1 + random(tiny.VOCAB - 1, 4))
    batch.path, batch.host_path = torch.zeros(4, 1, dtype=torch.long), [[0], [], [0], [0]]
    assert_fresh(model, batch, cached, 0)


def test_positions_by_the_longest_row_are_not_read_apart(monkeypatch):
    monkeypatch.setattr(prompts, "A_PASS", 0)
    monkeypatch.setattr(ragged, "read", passes := Mock(wraps=read))
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    RaggedModel(tiny.build("llama", rope_parameters=rope)).prefill(begun(tiny.llama())[0])
    assert not passes.called


def test_a_long_prompt_does_not_lengthen_short_ones(monkeypatch):
    """Neither in the target's passes nor in the draft's; texts are plain decoding's."""
    target, inputs, fed = tiny.llama(positions=512), unequal_prompts(3, 300, 5, 4), Counter[int]()
    call = {**inputs, "max_new_tokens": 12, "do_sample": False}
    plain, run = target.generate(**call), RaggedModel.run

    def counted(self, **given):
        fed[id(self.original)] += given["input_ids"].numel()
        return run(self, **given)

    monkeypatch.setattr(RaggedModel, "run", counted)
    assert hs.generate(target, **call, draft_model=tiny.noisy_copy(target), num_draft_tokens=3).equal(plain)
    real = int(inputs["attention_mask"].sum())
    assert len(fed) == 2 and all(real < num < real + 300 for num in fed.values()), (fed, real)


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llama", "falcon_h1"])
def test_caches_of_newcomers_are_let_go_of_at_once(model_type):
    """Not by the garbage collector, which comes late: keys may fill the memory of a server by then."""
    batch, cached, _ = begun(build("causal", model_type))
    cached.prefill(batch)

    def num_caches() -> int:
        return sum(type(one) is RaggedCache for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = num_caches()
        for _ in range(6):
            cached.admit(batch.part([2]), [1])
        assert num_caches() <= before + 1  # kept for the next call
    finally:
        gc.enable()


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
