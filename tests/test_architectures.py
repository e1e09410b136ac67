"""A sample of all model types, over all mappings; `python -m tests.architectures` runs the rest and writes the page."""

from collections import Counter

import pytest
from architectures import page
from architectures.check import MAPPINGS, examine, types_of
from architectures.runner import run

#: layouts that differ: latent attention, experts, windows, ALiBi, recurrence, learned positions, encoders, images
SAMPLE = [
    ("causal", "deepseek_v3"),
    ("causal", "gpt_oss"),
    ("causal", "llama"),
    ("causal", "bloom"),
    ("causal", "mamba2"),
    ("causal", "roberta"),
    ("causal", "qwen3_next"),
    ("seq2seq", "bart"),
    ("seq2seq", "t5"),
    ("image-text", "llava"),
    ("image-text", "qwen2_5_vl"),
    ("image-text", "gemma3"),
]


@pytest.mark.parametrize(("mapping", "model_type"), SAMPLE, ids=lambda value: value)
def test_a_sample_is_exact_or_refused(mapping, model_type):
    result = examine(mapping, model_type)
    assert result.outcome in ("ragged", "universal", "refused"), result.message


def test_the_page_shows_the_results_kept():
    assert page.PAGE.read_text() == page.render()


@pytest.mark.slow
def test_every_type_is_exact_or_refused():
    jobs = [(mapping, model_type) for mapping in MAPPINGS for model_type in types_of(mapping)]
    results = list(run(jobs, num_processes=2, seconds=120, gigabytes=12))
    assert not [result for result in results if result.outcome in ("raised", "wrong")]
    exact = Counter(result.mapping for result in results if result.outcome in ("ragged", "universal"))
    assert exact["causal"] >= 145 and min(exact["seq2seq"], exact["image-text"]) >= 25 and exact["speech"] >= 10
