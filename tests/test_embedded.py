"""The embedded models: they load, fit their size, share a tokenizer, and agree as their card says."""

import torch
from transformers import LlamaForCausalLM

import hf_speculative as hs
from hf_speculative.embedded import FOLDER, HEAD


def test_it_loads_and_fits():
    target, draft, tokenizer = hs.embedded_pair()
    assert isinstance(target, LlamaForCausalLM) and target.config.num_hidden_layers == 12
    assert draft.config.num_hidden_layers <= 2 and target.dtype == draft.dtype == torch.float32
    assert len(tokenizer) == target.vocab_size == draft.vocab_size
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 26e6
    assert hs.embedded_pair(dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_its_head_drafts():
    target, _, tokenizer = hs.embedded_pair()
    inputs = tokenizer(["import os\n", "def run(self, "], return_tensors="pt", padding=True, padding_side="left")
    call = {**inputs, "do_sample": False, "max_new_tokens": 40}
    with hs.record() as stats:
        text = hs.generate(target, **call, draft_model=str(HEAD))
    assert torch.equal(text, target.generate(**call)) and stats.draft_acceptance_rate > 0.1
