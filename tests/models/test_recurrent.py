"""Recurrent layers on the ragged path: a state for each row, stepped column by column, with the kernels of single steps."""

import inspect
import sys
from contextlib import contextmanager

import pytest
import torch
from transformers import DynamicCache

import hf_speculative as hs
from hf_speculative.hf_compat import is_torch_fallback
from hf_speculative.models import RaggedModel, UniversalModel, choose, probe, stepped
from hf_speculative.models.inputs import text_inputs
from hf_speculative.types import Batch
from tests.architectures.check import build
from tests.architectures.configs import VOCAB
from tests.support import tiny
from tests.support.plain import agrees

#: one a kind of recurrence and of layer: gated deltas, a state space alone and beside attention, short convolutions, scans
TYPES = (
    "qwen3_5_text",
    "olmo_hybrid",
    "kimi_linear",
    "granitemoehybrid",
    "falcon_h1",
    "mamba2",
    "nemotron_h",
    "lfm2",
    "jamba",
    "zamba",
)
#: those whose prompts and steps run through different kernels
STEPPED = ("qwen3_5_text", "kimi_linear", "mamba2", "jamba")
NEW = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


def begun(model, num_rows: int = 4, width: int = 7, max_length: int = 60):
    """Rows of unequal length, and how to continue them at random."""
    inputs = tiny.prompts(num_rows, width, vocab_size=VOCAB)
    padding = (1 - inputs["attention_mask"]).sum(1).tolist()
    batch, cached = Batch(inputs["input_ids"], padding, max_length=max_length), RaggedModel(model)
    generator = torch.Generator().manual_seed(0)
    return batch, cached, lambda high, *shape: torch.randint(0, high, shape, generator=generator)


def assert_fresh(model, batch, cached, k: int, at_once: bool = True) -> None:
    """Logits after the newest token and k draft tokens are those of one pass over each row alone.

    Else a token at a time, and the last one not at all, as a draft model reads its own.
    """
    if at_once:
        found = cached.logits(batch, ahead=k, num_last=k + 1)
    else:
        found = torch.cat([cached.logits(batch, ahead, num_last=1) for ahead in range(k)], 1)
    for row, (length, pad) in enumerate(zip(batch.host_lengths, batch.host_padding, strict=True)):
        fresh = model(batch.tokens[row : row + 1, pad : length + k]).logits[0, -k - 1 :][: found.shape[1]]
        torch.testing.assert_close(found[row], fresh, rtol=1e-3, atol=2e-4)


def append(batch, proposal, accepted, next_token) -> None:
    draft = hs.Draft(proposal, None, torch.full_like(batch.lengths, proposal.shape[1]))
    batch.append(draft, hs.Verdict(accepted, next_token))


@torch.no_grad()
@pytest.mark.parametrize("model_type", TYPES)
def test_cached_logits_equal_fresh_ones_after_every_round(model_type):
    """Random accept counts a row, drafts fed at once and a token at a time, a row that leaves, one that comes."""
    model = build("causal", model_type)
    assert choose(model).name == "ragged"
    batch, cached, random = begun(model)
    cached.prefill(batch)
    for round in range(7):
        k = round % 4
        proposal = 1 + random(VOCAB - 1, len(batch.rows), k)
        batch.put(proposal)
        assert_fresh(model, batch, cached, k, at_once=round % 2 == 0)
        append(batch, proposal, random(k + 1, len(batch.rows)), 1 + random(VOCAB - 1, len(batch.rows)))
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2, 3])
        if round == 5:
            newcomers = Batch(1 + random(VOCAB - 1, 1, 7), [1], max_length=60)
            batch.admit(newcomers, [1])
            cached.admit(newcomers, [1])
    assert cached.num_forwards < 30


@torch.no_grad()
@pytest.mark.parametrize("model_type", ("qwen3_5_text", "granitemoehybrid", "lfm2"))
def test_rows_begin_again_where_no_state_is_kept(model_type):
    """Further back than any round goes."""
    model = build("causal", model_type)
    batch, cached, random = begun(model, num_rows=3)
    cached.logits(batch, ahead=0, num_last=1)
    batch.lengths, batch.host_lengths = batch.lengths - 1, [length - 1 for length in batch.host_lengths]
    batch.put(1 + random(VOCAB - 1, 3, 1))
    cached.rollback(batch)
    assert cached.host_seen == [0] * 3
    assert_fresh(model, batch, cached, 1)


@pytest.mark.parametrize("model_type", ("qwen3_next", "bamba", "lfm2_moe", "falcon_mamba"))
def test_calls_equal_plain_ones(model_type):
    """Greedy and under a seed, copies of a prompt, stops inside a block, and the cache that a call returns."""
    model = build("causal", model_type)
    draft, inputs = tiny.noisy_copy(model, 0.05), tiny.prompts(3, vocab_size=VOCAB)
    sampled = NEW | {"do_sample": True, "top_k": 20, "num_return_sequences": 2}
    agrees(model, inputs | sampled, 4, draft_model=draft)
    plain = model.generate(**inputs, **NEW)
    settings = NEW | {"eos_token_id": [plain[0, -9].item(), plain[1, -4].item()], "return_dict_in_generate": True}
    expected = model.generate(**inputs, **settings)
    found = hs.generate(model, **inputs, **settings, draft_model=draft, num_draft_tokens=4)
    assert found.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True):
        for name in ("conv_states", "recurrent_states"):
            for index, state in getattr(theirs, name, {}).items():
                if state is not None:
                    torch.testing.assert_close(getattr(ours, name)[index], state, rtol=1e-3, atol=1e-3)
    if model_type == "falcon_mamba":
        for cache in (found.past_key_values, DynamicCache(config=model.config)):
            with pytest.raises(ValueError, match="pass the whole text"):
                hs.generate(model, **inputs, **NEW, cache_params=cache, draft_model=draft)
    else:
        ids = torch.cat([found.sequences, inputs["input_ids"][:1].expand(3, -1)], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(ids[:, inputs["attention_mask"].shape[1] :])], 1)
        turn = {"input_ids": ids, "attention_mask": mask} | NEW
        expected = model.generate(**turn, past_key_values=expected.past_key_values)
        found = hs.generate(model, **turn, past_key_values=found.past_key_values, draft_model=draft, num_draft_tokens=4)
        assert found.tolist() == expected.tolist()


@contextmanager
def kernels(model, monkeypatch, make):
    """The kernels of a model's module exchanged by `make(kind, prompt, single)`."""
    forward = next(
        inspect.unwrap(type(module).forward) for module in model.modules() if stepped._kind(module) is not None
    )
    kind = next(stepped._kind(module) for module in model.modules() if stepped._kind(module) is not None)
    names = forward.__globals__
    with monkeypatch.context() as patch:
        for name, kernel in make(kind, names[kind.prompt], names[kind.single]).items():
            patch.setitem(vars(sys.modules[names["__name__"]]), name, kernel)
        yield


@torch.no_grad()
@pytest.mark.parametrize("path", ["ragged", "universal"])
@pytest.mark.parametrize("model_type", STEPPED)
def test_a_few_columns_never_run_the_kernel_of_prompts(model_type, path, monkeypatch):
    model = build("causal", model_type)
    batch, cached, random = begun(model, num_rows=2)
    calls = []

    def noted(kind, prompt, single):
        return {kind.prompt: lambda *args, **kwargs: (calls.append(1), prompt(*args, **kwargs))[1]}

    with kernels(model, monkeypatch, noted):
        cached = RaggedModel(model) if path == "ragged" else UniversalModel(model, text_inputs(model, batch))
        cached.logits(batch, ahead=0, num_last=1)
        assert calls
        calls.clear()
        batch.put(1 + random(VOCAB - 1, 2, 4))
        batch.lengths, batch.host_lengths = batch.lengths + 1, [length + 1 for length in batch.host_lengths]
        cached.logits(batch, ahead=3, num_last=4)
        assert not calls


@torch.no_grad()
@pytest.mark.parametrize("model_type", STEPPED)
def test_a_fused_kernel_of_single_steps_runs_the_columns(model_type, monkeypatch):
    """One of a package is there if a kernel is not transformers' own in torch."""
    model = build("causal", model_type)
    calls = []

    def fused(kind, prompt, single):
        def kernel(*args, **kwargs):
            calls.append(1)
            return single(*args, **kwargs)

        assert is_torch_fallback(single) and not is_torch_fallback(kernel)
        return {kind.single: kernel}

    with kernels(model, monkeypatch, fused):
        assert probe._deviation_of_ragged(model, RaggedModel) < 1e-3
    assert len(calls) >= 4


@torch.no_grad()
def test_a_recurrence_of_another_kind_is_not_stepped(monkeypatch):
    """It takes the universal path by name, and would fail rather than be wrong."""
    model = build("causal", "qwen3_5_text")
    monkeypatch.setattr(stepped, "KINDS", ())
    assert "another kind (Qwen3_5GatedDeltaNet)" in choose(model).reason
    assert probe._deviation_of_ragged(model, RaggedModel) == torch.inf
