"""How many times faster: by pairs, by the median, and never more than the counted passes allow. No clock is read here."""

import json
import random
import statistics

import pytest
from scipy.stats import binom

from hf_speculative.measuring.speedup import FEWEST, Speedup, Work, allowed_by_passes, interval, quartiles


def pairs(plain_seconds, seconds, num_passes=24, num_tokens=48):
    """The same 48 tokens of one row both ways, the other way in so many passes."""
    return [
        (Work(num_tokens, own, num_passes), Work(num_tokens, plain, num_tokens))
        for own, plain in zip(seconds, plain_seconds, strict=True)
    ]


def test_a_busy_while_does_not_move_it():
    seconds = [2.0, 2.2, 2.4, 2.0, 2.2, 2.4] * 4
    quiet = Speedup.of(pairs([3.0] * 24, seconds), interval)
    busy = Speedup.of(pairs([3.0] * 12 + [30.0] * 5 + [3.0] * 7, seconds), interval)
    assert quiet.median == busy.median == pytest.approx(3 / 2.2)
    assert quiet.spread == busy.spread and busy.is_gain and str(busy) == "1.36x"
    assert (12 * 3 + 5 * 30 + 7 * 3) / sum(seconds) > 3, "where totals are moved far"


@pytest.mark.parametrize(("num", "d"), [(6, 1), (8, 1), (9, 2), (20, 6), (100, 40), (5000, 2431)])
def test_the_interval_is_that_of_the_sign_test(num, d):
    """Ranks 40 and 61 of 100, as tables have them."""
    ratios = list(range(1, num + 1))
    assert binom.cdf(d - 1, num, 0.5) <= 0.025 < binom.cdf(d, num, 0.5)
    assert interval(random.Random(0).sample(ratios, num)) == (d, num + 1 - d)
    assert all(interval(ratios[:few]) is None for few in range(FEWEST)) and interval(ratios[:FEWEST]) is not None


def test_no_cost_of_passes_gives_more_than_the_counts_allow():
    """Rows that end leave a batch; the prompt costs more than a step; sampled texts differ in length."""
    found, chance = [], random.Random(0)
    for _ in range(2000):
        lengths, own = ([chance.randint(1, 40) for _ in range(4)] for _ in range(2))
        rounds = [chance.randint(1, length) for length in own]
        prompt = chance.choice([1.0, 1.0 + chance.expovariate(0.01)])  # in plain steps of the whole batch
        share = chance.choice([0.0, 0.5, 1.0])  # of a step's time that goes with its rows
        left = [sum(r > i for r in rounds) for i in range(max(rounds))]
        seconds = prompt + sum(1 - share + share * rows / 4 for rows in left[1:])
        plain = Work(sum(lengths), prompt + max(lengths) - 1, 4 * max(lengths))
        work = Work(sum(own), seconds, sum(rounds))
        ratio = work.num_tokens / work.seconds / (plain.num_tokens / plain.seconds)
        found.append(ratio / allowed_by_passes(work, plain))
    assert max(found) == pytest.approx(1), "and some come up to it"
    assert statistics.median(found) > 0.5


def test_what_the_counts_rule_out_is_noise():
    speedup = Speedup.of(pairs([2.47] * 40, [1.0] * 40, num_passes=48), interval)
    assert (speedup.allowed, speedup.is_noise, speedup.is_gain, speedup.value) == (1, True, False, None)
    assert str(speedup) == "noise" and speedup.spread is None
    assert (
        speedup.noise_reason == "2.47 times plain's tokens per second by the clock, where its target passes allow 1.00"
    )
    expected = {"median": None, "low": None, "high": None, "allowed": 1.0, "num_pairs": 40}
    assert json.loads(json.dumps(speedup.to_dict())) == expected | {"measured": pytest.approx(2.47), "is_noise": True}
    compiled = Speedup.of(pairs([2.47] * 40, [1.0] * 40, num_passes=48), interval, is_bounded=False)
    assert str(compiled) == "2.47x" and compiled.is_gain, "a compiled pass may cost less than plain's"
    uncounted = Speedup.of(pairs([2.47] * 40, [1.0] * 40, num_passes=0), interval)
    assert uncounted.allowed is None and not uncounted.is_noise


def test_a_single_pair_proves_nothing():
    one = Speedup.of(pairs([1.5], [1.0]), quartiles)
    assert (str(one), one.spread, one.is_gain, one.is_loss) == ("1.50x", None, False, False)
    assert Speedup.of(pairs([1.4, 1.6], [1.0, 1.0]), quartiles).spread == pytest.approx((1.45, 1.55))
    assert Speedup.of(pairs([1.4, 1.6], [1.0, 1.0]), interval).spread is None
    assert Speedup.of(pairs([1.0, 2.0], [0.0, -1.0]), quartiles) is None, "no time was measured"


def test_texts_of_other_lengths_are_compared_by_tokens_per_second():
    work, plain = Work(10, 2.0, 4), Work(40, 10.0, 40)
    assert Speedup.of([(work, plain)], interval).median == pytest.approx(5 / 4)
