"""A sample of all model types, over all mappings; `python -m tests.architectures` runs the rest and writes the page."""

from collections import Counter

import pytest

from hf_speculative.models.verified_types import TESTED
from tests.architectures import page
from tests.architectures.check import MAPPINGS, examine, types_of
from tests.architectures.runner import run
from tests.support.cases import STRIDE

#: what people run, and layouts that differ: latent attention, experts, windows, ALiBi, recurrence, encoders, images
RAGGED = "bloom deepseek_v3 gemma3_text gpt2 gpt_oss llama mamba mamba2 mistral phi3 qwen2 qwen3 qwen3_next roberta"
OUTCOMES = {
    ("causal", "ragged"): RAGGED,
    ("causal", "universal"): "gpt_neo zaya",
    ("causal", "refused"): "rwkv",
    ("seq2seq", "ragged"): "bart t5",
    ("speech", "ragged"): "whisper",
    ("image-text", "ragged"): "gemma3 llava qwen2_5_vl",
    ("image-text", "universal"): "mllama",
}
SAMPLE = {(mapping, name): outcome for (mapping, outcome), names in OUTCOMES.items() for name in names.split()}
QUICK = ("gpt_neo", "zaya", "rwkv", "llava")


@pytest.mark.parametrize("case", [case for case in SAMPLE if case[1] in QUICK], ids="-".join)
def test_a_sample_is_exact_by_the_path_it_is_known_to_take(case):
    result = examine(*case)
    assert result.outcome == SAMPLE[case], result.message
    assert result.trees or case[1] not in TESTED["trees"]


def test_the_page_shows_the_results_kept():
    assert page.PAGE.read_text() == page.render()


@pytest.mark.slow
def test_types_are_exact_or_refused():
    """The sample, and each STRIDE-th of all others."""
    jobs = [(mapping, model_type) for mapping in MAPPINGS for model_type in [*types_of(mapping)][::STRIDE]]
    jobs += SAMPLE.keys() - {*jobs}
    results = list(run(jobs, num_processes=2, seconds=120, gigabytes=12))
    assert not [result for result in results if result.outcome in ("raised", "wrong")]
    assert not [result for result in results if result.trees is False and result.model_type in TESTED["trees"]]
    found = {(result.mapping, result.model_type): result.outcome for result in results}
    assert found == found | SAMPLE
    exact = Counter(result.mapping for result in results if result.outcome in ("ragged", "universal"))
    least = {"causal": 145, "seq2seq": 25, "image-text": 25, "speech": 10}
    assert all(exact[mapping] >= number / STRIDE for mapping, number in least.items())
