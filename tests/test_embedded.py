"""The embedded models: they load, fit their size, share a tokenizer, and agree as their card says."""

import re

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


def test_its_tokenizer_survives_a_round_trip():
    tokenizer = hs.embedded_pair()[2]
    text = "def f(x):\n\treturn '\\u00e9\u00e9 \U0001f600'  # done\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_its_card_says_what_was_measured():
    card = (FOLDER / "README.md").read_text()
    assert re.search(r"target \d\.\d{3}, draft \d\.\d{3}", card)
    acceptance = float(re.search(r"\*\*(0\.\d{3})\*\*", card).group(1))
    target, draft, tokenizer = hs.embedded_pair()
    inputs = tokenizer(
        ["import os\n", "class Queue:\n", "def run(self, "], return_tensors="pt", padding=True, padding_side="left"
    )
    with hs.record() as stats:
        hs.generate(
            target,
            **inputs,
            draft_model=draft,
            do_sample=True,
            top_k=0,
            max_new_tokens=200,
        )
    assert abs(stats.token_acceptance_rate - acceptance) < 0.15
