import pytest
from transformers import AutoTokenizer

import hf_speculative as hs
from hf_speculative.embedded import FOLDER
from tests.support import tiny
from tests.support.evaluations import OPTIONS, TEXTS


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER / "target")


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny.llama(vocab_size=len(tokenizer), positions=64)


@pytest.fixture(scope="module")
def small(model):
    return tiny.noisy_copy(model)


@pytest.fixture
def evaluate(model, small, tokenizer):
    def call(dataset=TEXTS, draft_model=small, **options):
        return hs.evaluate(model, draft_model, dataset, tokenizer=tokenizer, **OPTIONS | options)

    return call
