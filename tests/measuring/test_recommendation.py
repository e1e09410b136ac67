"""What is recommended follows from calls timed in pairs. No clock is read here."""

import random

import pytest
from scipy.stats import binom

from hf_speculative.measuring.settings import Setting
from hf_speculative.measuring.speedup import FEWEST, Speedup, Work, interval, quartiles
from tests.support.evaluations import handmade

A2, A4 = Setting(draft_model="a", num_draft_tokens=2), Setting(draft_model="a", num_draft_tokens=4)


@pytest.mark.parametrize(
    ("seconds", "setting", "is_clear", "advice"),
    [
        (([4], [2], [2.5]), A2, True, 'take "a, 2 tokens", 2.00x (2.00 to 2.00) plain decoding, 25.0 % faster than'),
        (([4.0, 4.0], [2.0, 2.6], [2.6, 2.05]), A2, False, 'a draw: take "a, 2 tokens", 1.77x (1.54 to 2.00) plain'),
        (([2], [2.5], [3]), Setting(), True, 'decode plainly, no draft is faster here; the best, "a, 2 tokens", is'),
        (([4], [1, 5], [3]), A4, True, 'take "a, 4 tokens", 1.33x (1.33 to 1.33) plain decoding.'),
        (([2.2, 2], [2, 2.2], [2.5, 2.5]), None, False, 'too close to tell: "a, 2 tokens" is at 1.00x plain decoding'),
    ],
)
def test_the_recommendation(seconds, setting, is_clear, advice):
    evaluation = handmade([(of_setting * 8)[:8] for of_setting in seconds])
    (found,) = evaluation.recommendations
    assert (found.setting, found.is_clear) == (setting, is_clear) and found.advice.startswith(advice)
    assert ("x (" in found.headline) == found.is_gain
    evaluation.header["target"] = "org/big"
    assert str(evaluation) == f"org/big\ngreedy: {found.advice}"


def test_few_batches_prove_nothing():
    (found,) = handmade([[4.0] * 5, [2.0] * 5, [2.5] * 5]).recommendations
    assert found.setting is None and found.headline == "undecided"
    told = 'too few batches to tell, 5 where it takes 6; so far "a, 2 tokens" is at 2.00x plain decoding.'
    assert found.advice == told
    assert handmade([[], [], []]).recommendations == []


def test_as_a_table_and_in_a_line():
    evaluation = handmade([[4.0] * 8, [2.0] * 8, [2.5] * 8])
    evaluation.header["target"] = "org/big"
    table = evaluation.to_pandas()
    assert list(table.index) == [setting.name for setting in evaluation.settings]
    assert table["speedup"].tolist()[1:] == pytest.approx([2.0, 1.6]) and table["speedup"].isna().iloc[0]
    assert table.loc[A2.name, "speedup_low"] == 2.0 and "draft_acceptance_rate" in table and "temperature" in table
    assert "3 settings, 8 batches" in repr(evaluation) and "2.00x (2.00 to 2.00): a, 2 tokens" in repr(evaluation)


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
