"""What is recommended follows from calls timed in pairs. No clock is read here."""

import pytest

from hf_speculative.measuring.settings import Setting
from tests.support.evaluations import handmade

A2, A4 = Setting(draft_model="a", num_draft_tokens=2), Setting(draft_model="a", num_draft_tokens=4)


@pytest.mark.parametrize(
    ("seconds", "setting", "is_clear", "advice"),
    [
        (
            ([4.0], [2.0], [2.5]),
            A2,
            True,
            'take "a, 2 tokens", 2.00x (2.00 to 2.00) plain decoding, 25.0 % faster than',
        ),
        (([4.0, 4.0], [2.0, 2.6], [2.6, 2.05]), A2, False, 'a draw: take "a, 2 tokens", 1.77x (1.54 to 2.00) plain'),
        (
            ([2.0], [2.5], [3.0]),
            Setting(),
            True,
            'decode plainly, no draft is faster here; the best, "a, 2 tokens", is',
        ),
        (
            ([2.2, 2.0], [2.0, 2.2], [2.5, 2.5]),
            None,
            False,
            'too close to tell: "a, 2 tokens" is at 1.00x plain decoding',
        ),
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
    assert sorted(evaluation.speedups(A2)) == [*range(8)]
