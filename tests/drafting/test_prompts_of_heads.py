"""Heads read prompts of very different lengths in several passes, and draft what they draft after one."""

import gc
import weakref

import pytest
import torch

import hf_speculative as hs
from hf_speculative.drafting.autoregressive import HeadDrafter
from hf_speculative.models import AttentionLayers, RecordingModel, prompts
from tests.support import heads, tied

LENGTHS = (3, 90, 5, 1, 70, 4)


def eagle3(folder):
    model, head = heads.made("llama")
    return model, {"draft_model": head}


def peagle(folder):
    model, head = heads.made("parallel")
    return model, {"draft_model": head}


def dflash(folder):
    model, head = tied.with_dflash(steps=20)
    return model, {"draft_model": head}


def mtp_layers(folder):
    tied.mtp_or_skip()
    return tied.with_mtp(folder, num_mtp_layers=2), {"use_mtp": True}


def mtp_head(folder):
    model = heads.target()
    return model, {"draft_model": str(heads.write_mtp(folder / "head", model))}


@pytest.mark.parametrize("make", [eagle3, peagle, dflash, mtp_layers, mtp_head])
def test_prompts_read_apart(make, tmp_path, monkeypatch):
    model, arguments = make(tmp_path)
    tree = {"tree_top_k": 1} if make in (eagle3, peagle, dflash) else {}
    arguments |= {"speculative_config": hs.SpeculativeConfig(**tree), "num_draft_tokens": 2, "do_sample": False}
    texts = [torch.randint(1, 60, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in LENGTHS]
    drafted, columns = [], []
    propose, states = HeadDrafter.propose, RecordingModel.hidden_states

    def proposed(self, batch, *args):
        draft = propose(self, batch, *args)
        drafted.append(dict(zip(batch.rows, draft.tokens.tolist(), strict=True)))
        return draft

    def read(self, positions, lanes=None):
        columns.append(positions.numel())
        return states(self, positions, lanes)

    monkeypatch.setattr(HeadDrafter, "propose", proposed)
    monkeypatch.setattr(RecordingModel, "hidden_states", read)

    def run(a_pass):
        monkeypatch.setattr(prompts, "A_PASS", a_pass)
        drafted.clear()
        columns.clear()
        completions = hs.generate_batches(model, texts, batch_size=3, max_new_tokens=6, **arguments)
        return [one.new_ids for one in completions], list(drafted), max(columns)

    *expected, together = run(10**6)
    *found, apart = run(8)
    assert found == expected
    assert apart < 90 + 8 < 3 * 80 < together


def test_caches_go_with_their_call(tmp_path, monkeypatch):
    """Not with the next collection of cycles, for which a GPU's memory would wait."""
    model, arguments = mtp_layers(tmp_path)
    begun, begin = [], HeadDrafter.begin
    monkeypatch.setattr(HeadDrafter, "begin", lambda self, *args: begun.append(weakref.ref(self)) or begin(self, *args))
    gc.collect()
    gc.disable()
    try:
        hs.generate(model, torch.tensor([[5, 9, 11]]), max_new_tokens=8, do_sample=False, num_draft_tokens=2, **arguments)
        assert begun and all(one() is None for one in begun)
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [eagle3, peagle, mtp_layers, mtp_head])
def test_a_prompt_needs_no_mask(make, tmp_path, monkeypatch):
    """It would be quadratic in the prompt's length; the tokens are the same."""
    model, drafting = make(tmp_path)
    ids = torch.randint(3, 50, (2, 60), generator=torch.Generator().manual_seed(0))
    call = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0} | drafting
    widths, masks = [], AttentionLayers.masks

    def watched(self, queries, *args, **kwargs):
        widths.append(queries.shape[1])
        return masks(self, queries, *args, **kwargs)

    monkeypatch.setattr(AttentionLayers, "masks", watched)
    outputs = []
    for need_no_mask in (AttentionLayers.need_no_mask, lambda *_: False):
        monkeypatch.setattr(AttentionLayers, "need_no_mask", need_no_mask)
        widths.clear()
        output = hs.generate(model, ids, **call, return_dict_in_generate=True)
        outputs.append((output.sequences.tolist(), output.statistics.num_accepted_draft_tokens, max(widths)))
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][2] < 20 < 59 <= outputs[1][2]
