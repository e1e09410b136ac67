import string

import pytest
from transformers import AutoModelForCausalLM

import hf_speculative as hs
from hf_speculative.measuring.journal import Journal
from tests.support import tongues

PROMPTS = ("import os\n", "def main():\n")


@pytest.fixture(scope="session")
def pair(target, draft, tmp_path_factory):
    """Target, draft and tokenizer, loaded from folders of their own."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tongues.characters(string.ascii_lowercase + " \n():")
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return *(AutoModelForCausalLM.from_pretrained(folder / name) for name in ("target", "draft")), tokenizer


@pytest.fixture(scope="session")
def results(pair, tmp_path_factory):
    """Two use cases: greedy and sampled; lengths 2, 4 and adaptive; prompt lookup."""
    folder = tmp_path_factory.mktemp("results")
    target, draft, tokenizer = pair
    options = {"tokenizer": tokenizer, "num_draft_tokens": [2, 4, None], "prompt_lookup_num_tokens": [3]}
    options |= {"max_new_tokens": 8, "progress": False}
    for name, temperatures in (("code", [0.0, 0.8]), ("chat", [0.0])):
        path = folder / f"{name}.jsonl"
        hs.evaluate(target, draft, [*PROMPTS], temperatures=temperatures, results=path, **options)
        by_counts(path)
    return folder


def by_counts(path):
    """Seconds as a quiet machine would have them: a plain step takes 1 s, a pass with a draft in it 1.1 s."""
    journal = Journal.read(path)
    for call in journal.calls.values():
        call.seconds = call.num_target_passes * (1.0 if call.statistics is None else 1.1)
    journal.write(path)


@pytest.fixture(scope="session")
def code(results):
    return hs.Evaluation.load(results / "code.jsonl")


@pytest.fixture(scope="session")
def chat(results):
    return hs.Evaluation.load(results / "chat.jsonl")
