"""The table of verdicts: what is said about which figures."""

import pytest

from hf_speculative.compatibility.advice import Advice, called
from hf_speculative.compatibility.trials import Trial

CHEAP, DEAR = (1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 2.1, 3.2, 4.3, 5.4)
GOOD, POOR, FAIR = ((4, 4), (4, 2)) * 10, ((4, 0),) * 49 + ((4, 1),), ((4, 1), (4, 0), (4, 0), (4, 0)) * 3


def trials(name="draft_model", options=None, rounds=GOOD, times=CHEAP, decodings=("greedy", "sampled"), **more):
    options = options or {"draft_model": "small"}
    return tuple(Trial(name, options, one, 60, (rounds,) * 2 if rounds else (), times, **more) for one in decodings)


AUTO = {"name": "auto", "options": {"draft_model": "auto"}, "is_chain": False}
VERDICTS = {
    "good draft": (trials(), True, "Worth it. Greedy: take draft_model='small', num_draft_tokens=4, 2.86x"),
    "poor draft": (trials(rounds=POOR), False, "Not worth it: decode plainly. Greedy: no source is expected to gain"),
    "needs": (
        trials(rounds=POOR),
        False,
        "the target keeps 2 % of the first draft tokens, where it takes 10 % of each to gain",
    ),
    "dear draft": (trials(times=DEAR), False, "more than it could bring if every draft token were kept"),
    "in between": (
        trials(rounds=FAIR),
        None,
        "Too close to tell. Greedy: none clearly gains; the best, draft_model='small'",
    ),
    "a single round": (
        trials(rounds=POOR[:1], times=DEAR),
        None,
        "Too close to tell. Greedy: none clearly gains; the best, draft_model='small', num_draft_tokens=1, is at ",
    ),
    "nothing drafted": (trials(rounds=((0, 0),) * 9), False, "Greedy: no source drafted anything on this text."),
    "nothing tried": (trials(rounds=()), False, "no source drafted anything"),
    "failed": (
        trials(rounds=(), failure="out of memory"),
        False,
        "The draft, greedy: it could not be tried, out of memory.",
    ),
    "better without": (
        trials(rounds=POOR) + trials(rounds=GOOD, **AUTO),
        True,
        "Worth it. Greedy: take draft_model='auto', 2.86x",
    ),
    "better than without": (trials() + trials(rounds=POOR, **AUTO), True, "Greedy: take draft_model='small'"),
    "sampled only": (
        trials(rounds=POOR, decodings=("greedy",)) + trials(decodings=("sampled",)),
        True,
        "Worth it. Greedy: no source is expected to gain; the best, draft_model='small', num_draft_tokens=1, is at 0.93x",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    tried, is_worth_it, sentence = VERDICTS[name]
    advice = Advice("draft_model", tried, {"target": 10})
    assert advice.is_worth_it is is_worth_it
    assert ("too few rounds to tell" in advice.verdict) == (name == "a single round")
    assert "plain steps" not in advice.verdict or name != "a single round", "no reason for what is not known"
    assert sentence in advice.verdict and "nan" not in advice.verdict and "None" not in advice.verdict


def test_what_pays_at_one_batch_size_and_not_at_another():
    at_1, at_8 = trials(), trials(times=DEAR, batch_size=8)
    advice = Advice("draft_model", at_1 + at_8, {})
    assert advice.verdict.startswith(
        "Worth it at batch 1, not worth it at batch 8. Greedy at batch 1: take draft_model='small'"
    )
    assert "Greedy at batch 8: no source is expected to gain" in advice.verdict
    assert "The draft, greedy at batch 8: " in advice.verdict and "The draft, greedy at batch 1: " not in advice.verdict
    assert advice.is_worth_it and advice.pays_at(1) and advice.pays_at(8) is False
    assert Advice("draft_model", at_1, {}).verdict == Advice(None, trials(batch_size=8), {}).verdict, (
        "one size needs no name"
    )
    assert Advice("draft_model", at_1 + trials(batch_size=8), {}).verdict.startswith(
        "Worth it. Greedy at batch 1: take"
    )


def test_a_draft_that_is_behind_another_source_is_named():
    advice = Advice("draft_model", trials(rounds=((4, 2), (4, 1)) * 10) + trials(**AUTO), {})
    assert "Greedy: take draft_model='auto'" in advice.verdict and "The draft, greedy: 2.08x" in advice.verdict
    assert "The draft" not in Advice("draft_model", trials(), {}).verdict


def test_what_to_write_into_the_call():
    assert called(trials()[0]) == "draft_model='small', num_draft_tokens=4"
    assert called(trials(**AUTO)[0]) == "draft_model='auto'"
    lookup = trials("ngram", {"prompt_lookup_num_tokens": 10}, ((4, 2), (4, 1)) * 9)[0]
    assert called(lookup) == "prompt_lookup_num_tokens=2", "it brings its own length"
