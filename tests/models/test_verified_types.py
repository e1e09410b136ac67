"""A sample of all model types, over all mappings; `python -m tests.architectures` runs the rest and writes the page."""

from collections import Counter

import pytest

from tests.architectures import page
from tests.architectures.check import MAPPINGS, examine, types_of
from tests.architectures.runner import run

#: what people run, and layouts that differ: latent attention, experts, windows, ALiBi, recurrence, encoders, images
SAMPLE = {
    "causal": {
        "deepseek_v3": "ragged",
        "gemma3_text": "ragged",
        "gpt2": "ragged",
        "gpt_oss": "ragged",
        "llama": "ragged",
        "mistral": "ragged",
        "phi3": "ragged",
        "qwen2": "ragged",
        "qwen3": "ragged",
        "roberta": "ragged",
        "bloom": "universal",
        "mamba": "ragged",
        "mamba2": "ragged",
        "qwen3_next": "ragged",
        "zaya": "universal",
        "rwkv": "refused",
    },
    "seq2seq": {"bart": "universal", "t5": "universal"},
    "speech": {"whisper": "universal"},
    "image-text": {"gemma3": "ragged", "llava": "ragged", "qwen2_5_vl": "ragged", "mllama": "universal"},
}


QUICK = ("gemma3_text", "llama", "bloom", "qwen3_next", "zaya", "rwkv", "bart", "llava")


@pytest.mark.parametrize("case", [(m, name) for m in SAMPLE for name in SAMPLE[m] if name in QUICK], ids="-".join)
def test_a_sample_is_exact_by_the_path_it_is_known_to_take(case):
    mapping, model_type = case
    result = examine(mapping, model_type)
    assert result.outcome == SAMPLE[mapping][model_type], result.message


def test_the_page_shows_the_results_kept():
    assert page.PAGE.read_text() == page.render()


@pytest.mark.slow
def test_every_type_is_exact_or_refused():
    jobs = [(mapping, model_type) for mapping in MAPPINGS for model_type in types_of(mapping)]
    results = list(run(jobs, num_processes=2, seconds=120, gigabytes=12))
    assert not [result for result in results if result.outcome in ("raised", "wrong")]
    found = {(result.mapping, result.model_type): result.outcome for result in results}
    assert found == found | {(mapping, name): path for mapping in SAMPLE for name, path in SAMPLE[mapping].items()}
    exact = Counter(result.mapping for result in results if result.outcome in ("ragged", "universal"))
    assert exact["causal"] >= 145 and min(exact["seq2seq"], exact["image-text"]) >= 25 and exact["speech"] >= 10
