"""The short evaluation: which sources are tried, for how long, that nothing else changes, and what is said of its figures."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from hf_speculative.call.sources import source_of
from hf_speculative.compatibility import running
from hf_speculative.compatibility.answer import Advice
from hf_speculative.compatibility.running import candidates, of_draft, short_evaluation, temperatures
from hf_speculative.measuring.settings import NamedDraft, Setting
from hf_speculative.models.model_state import kept_with
from tests.architectures.check import build
from tests.support import tied
from tests.support.evaluations import handmade, watch_calls

PROMPTS = [[5, 6, 7, 8], [9, 8, 7], [3, 4]]
GREEDY = Setting(draft_model="draft", num_draft_tokens=3)


def tried(target, draft, settings=(GREEDY,), batch_size=1, seconds=1e9, **more):
    return short_evaluation(target, None, {"draft": NamedDraft(draft)}, settings, PROMPTS, batch_size, seconds, **more)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(running, "MOST_BATCHES", 4)
    monkeypatch.setattr(running, "LONGEST_CALL", 12)
    monkeypatch.setattr(running, "SHORTEST_CALL", 4)


def named(target):
    return {source_of(*item).for_model(target).label for options in candidates(target) for item in options.items()}


def test_which_sources_are_tried_on_a_target(target, tmp_path):
    assert named(target) == {"early_exit at layer 1", "ngram", "auto"}
    assert named(build("causal", "gpt_neo")) == {"ngram", "auto"}, "no layers of its own"
    assert named(tied.with_mtp(tmp_path)) == {"early_exit at layer 1", "ngram", "mtp"}, "auto is mtp there"


def test_every_source_on_the_same_texts(target, twin):
    options = [*of_draft("draft"), *candidates(target)]
    settings = [Setting(temperature=t, **one) for t in temperatures(target) for one in options]
    found = tried(target, twin, settings)
    assert found.is_complete and not found.failures and not found.bad_rows and not found.differences
    assert {found.totals(setting).num_prompts for setting in found.settings} == {4}
    for setting in found.settings:
        if not setting.is_plain and not setting.temperature:
            assert found.totals(setting).num_identical == 4, setting
    assert found.totals(Setting(**of_draft("draft")[0])).statistics.draft_acceptance_rate == 1
    assert found.spread_name == "quartiles" and found.totals(found.settings[1]).speedup.spread is not None


def test_time_is_bounded(target, twin, monkeypatch):
    def num_batches(seconds):
        monkeypatch.setattr(running, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
        return len(tried(target, twin, seconds=seconds).calls[GREEDY.name])

    assert num_batches(1) == 1, "one at least"
    assert 1 < num_batches(4) < 4 and num_batches(1e9) == 4


def test_what_cannot_run_says_why_and_the_others_go_on(target, twin, monkeypatch):
    broken = Setting(draft_model="draft", num_draft_tokens=2)

    def fail(setting, *args):
        if setting == broken:
            raise RuntimeError("out of memory")

    watch_calls(monkeypatch, fail)
    found = tried(target, twin, [GREEDY, broken])
    assert [failure.message for failure in found.failures] == ["RuntimeError: out of memory"]
    assert found.totals(GREEDY).num_identical == 4 and found.is_complete


def test_nothing_is_left_behind(target, twin):
    state, kept = torch.get_rng_state(), dict(kept_with(target))
    config = target.generation_config.to_dict()
    tried(target, twin)
    assert torch.equal(torch.get_rng_state(), state) and kept_with(target) == kept
    assert target.generation_config.to_dict() == config


def measured(a2, a4=(9.0,) * 3, plain=(4.0,) * 3, rounds=(3, 3)):
    """Plain decoding and a draft at two lengths, greedy, with these seconds for their calls."""
    evaluation = handmade([plain, a2, a4], num_rounds=rounds)
    evaluation.header["spread"] = "quartiles"
    return evaluation


GOOD, POOR, FAIR = (2.0, 2.1, 2.2), (5.0, 5.1, 5.2), (3.9, 4.0, 4.1)
VERDICTS = {
    "good": (measured(GOOD), True, 'Worth it. Greedy: take "a, 2 tokens", 1.90x (1.86 to 1.95) plain decoding'),
    "poor": (measured(POOR), False, "Not worth it: decode plainly. Greedy: decode plainly, no draft is faster here"),
    "fair": (measured(FAIR), None, 'Too close to tell. Greedy: too close to tell: "a, 2 tokens" is at 1.00x'),
    "one": (measured([2.0], [9.0], [4.0]), None, "Greedy: too few batches to tell, 1 where it takes 2; so far"),
    "none": (measured([], [], []), False, "Greedy: no source could be measured."),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    evaluation, is_worth_it, sentence = VERDICTS[name]
    advice = Advice({1: evaluation}, {"target": 10})
    assert advice.is_worth_it is is_worth_it and sentence in advice.verdict
    assert "nan" not in advice.verdict and "None" not in advice.verdict
    assert (evaluation.recommendation(0.0) is None) == (name == "none")


def test_what_pays_at_one_batch_size_and_not_at_another():
    advice = Advice({1: measured(GOOD), 8: measured(POOR)}, {})
    assert advice.verdict.startswith("Worth it at batch 1, not worth it at batch 8. Greedy at batch 1: take ")
    assert "Greedy at batch 8: decode plainly" in advice.verdict
    assert advice.is_worth_it and advice.pays_at(1) and advice.pays_at(8) is False
    one, other = (Advice({size: measured(GOOD)}, {}).verdict for size in (1, 8))
    assert one == other, "one size needs no name"
