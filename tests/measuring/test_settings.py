"""Settings: which source drafts, with which options. Nothing in the evaluation and its readers knows the sources' list."""

import re
from dataclasses import dataclass

import pytest

import hf_speculative as hs
from hf_speculative.call import sources
from hf_speculative.call.option_table import DRAFTS
from hf_speculative.measuring.render import page
from hf_speculative.measuring.settings import Setting
from tests.support.drafters import suffix_drafter
from tests.support.evaluations import TEXTS
from tests.support.tiny import refused


@dataclass(frozen=True)
class ToySource(hs.DraftSource):
    given: str

    argument, method = "draft_model", "toy"

    @classmethod
    def takes(cls, value):
        return value == cls.method

    def drafter(self, call):
        return suffix_drafter()


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(sources, "SOURCES", (ToySource, *sources.SOURCES))
    monkeypatch.setitem(vars(DRAFTS), "methods", (*DRAFTS.methods, "toy"))


def test_a_source_is_evaluated_and_reported_by_being_in_the_tuple(toy, evaluate, tmp_path):
    options = {"draft_model": ["toy"], "num_draft_tokens": (2, None), "max_new_tokens": 24}
    evaluation = evaluate(results=tmp_path / "out.jsonl", **options)
    assert [s.label for s in evaluation.settings] == ["plain", "toy, 2 tokens", "toy, adaptive length"]
    assert not evaluation.differences
    assert evaluation.totals(evaluation.settings[1]).statistics.num_draft_tokens > 0
    assert hs.Evaluation.load(tmp_path / "out.jsonl").settings == evaluation.settings
    page.write({"": evaluation}, tmp_path / "page.html")
    assert "toy, adaptive length" in (tmp_path / "page.html").read_text(encoding="utf-8")
    card = hs.card(evaluation)
    assert "toy, 2 tokens" in card and ", draft_model='toy'" in re.search(r"```python\n(.*?)```", card, re.S)[1]


@pytest.mark.parametrize("method", ["suffix", "recycling", "auto"])
def test_what_a_setting_learns_is_its_own(evaluate, method):
    """Not from the warm-up, not from what the setting before it decoded: the texts are the same."""
    options = {"draft_model": [method], "prompt_lookup_num_tokens": [3], "max_new_tokens": 24}
    if method == "suffix":
        options["options"] = {"suffix_decoding_max_cached_requests": 9}
    evaluation = evaluate(TEXTS[:2] * 2, num_draft_tokens=(3, 4), **options)
    alone = evaluate(TEXTS[:2] * 2, num_draft_tokens=(4,), **options)
    setting = next(setting for setting in alone.settings if setting.num_draft_tokens == 4)
    assert setting.label.startswith(f"{method}, 4 tokens") and not evaluation.differences
    found, expected = evaluation.rows(setting), alone.rows(setting)
    assert [row.statistics for row in found.values()] == [row.statistics for row in expected.values()]
    first, again = found[0].statistics, found[2].statistics
    assert first.num_rounds > again.num_rounds, "the same text once more, from what was learned"


def test_what_no_setting_says():
    with pytest.raises(ValueError, match="`draft_model` and `prompt_lookup_num_tokens` are two sources"):
        Setting(draft_model="a", prompt_lookup_num_tokens=3)
    with pytest.raises(ValueError, match="`num_draft_tokens` has no effect without a source of drafts"):
        Setting(num_draft_tokens=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_mtp": [True]}, "LlamaForCausalLM has no MTP layers"),
        ({"assistant_early_exit": 1}, r"give `assistant_early_exit=\[1\]`"),
        ({"options": {"max_matching_ngram_size": 2}}, "`max_matching_ngram_size=2` has no effect on any of these sources"),
        ({"max_matching_ngram_size": 2}, "differs between settings: give `options` instead"),
        ({"settings": [Setting(prompt_lookup_num_tokens=3)], "use_mtp": [True]}, "`use_mtp` has no effect beside `settings`"),
    ],
)  # fmt: skip
def test_what_fits_no_target_or_source_is_refused_before_a_forward(evaluate, model, options, message):
    with refused(model, message, (ValueError, TypeError)):
        evaluate(**options)


def test_where_a_corpus_lies_on_this_machine_is_in_no_name():
    setting = Setting(draft_model="suffix", corpus="/home/me/texts/manual.txt")
    assert setting.label == "suffix, adaptive length, corpus=manual.txt"
    assert setting.generate_kwargs["speculative_config"].corpus == "/home/me/texts/manual.txt"
