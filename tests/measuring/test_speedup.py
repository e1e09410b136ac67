"""How many times faster: by pairs, by the median. No clock is read here."""

import random

import pytest
from scipy.stats import binom

from hf_speculative.measuring.speedup import FEWEST, Speedup, Work, interval, quartiles


def pairs(plain_seconds, seconds, num_tokens=48):
    return [(Work(num_tokens, own), Work(num_tokens, plain)) for own, plain in zip(seconds, plain_seconds, strict=True)]


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


def test_a_single_pair_proves_nothing():
    one = Speedup.of(pairs([1.5], [1.0]), quartiles)
    assert (str(one), one.spread, one.is_gain, one.is_loss) == ("1.50x", None, False, False)
    assert Speedup.of(pairs([1.4, 1.6], [1.0, 1.0]), quartiles).spread == pytest.approx((1.45, 1.55))
    assert Speedup.of(pairs([1.4, 1.6], [1.0, 1.0]), interval).spread is None
    assert Speedup.of(pairs([1.0, 2.0], [0.0, -1.0]), quartiles) is None, "no time was measured"


def test_texts_of_other_lengths_are_compared_by_tokens_per_second():
    work, plain = Work(10, 2.0), Work(40, 10.0)
    assert Speedup.of([(work, plain)], interval).median == pytest.approx(5 / 4)
