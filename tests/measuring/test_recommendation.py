"""What is recommended follows from calls timed in pairs, within what the counted passes allow. No clock is read here."""

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
            'take "a, 2 tokens", 2.00x (2.00 to 2.00) plain decoding, 25.0 % faster than the next, "a, 4 tokens".',
        ),
        (
            ([4.0, 4.0], [2.0, 2.6], [2.6, 2.05]),
            A2,
            False,
            'a draw: take "a, 2 tokens", 1.77x (1.54 to 2.00) plain decoding, or "a, 4 tokens"; the figures do not tell which.',
        ),
        (
            ([2.0], [2.5], [3.0]),
            Setting(),
            True,
            'decode plainly, no draft is faster here; the best, "a, 2 tokens", is at 0.80x plain decoding.',
        ),
        (
            ([2.2, 2.0], [2.0, 2.2], [2.5, 2.5]),
            None,
            False,
            'too close to tell: "a, 2 tokens" is at 1.00x plain decoding, with a 95 % interval of 0.91 to 1.10.',
        ),
    ],
)
def test_the_recommendation(seconds, setting, is_clear, advice):
    evaluation = handmade([(of_setting * 8)[:8] for of_setting in seconds])
    (found,) = evaluation.recommendations
    assert (found.setting, found.is_clear, found.advice) == (setting, is_clear, advice)
    assert found.is_draw == advice.startswith("a draw") and ("x (" in found.headline) == found.is_gain
    evaluation.header["target"] = "org/big"
    assert str(evaluation) == f"org/big\ngreedy: {advice}"


def test_few_batches_prove_nothing():
    (found,) = handmade([[4.0] * 5, [2.0] * 5, [2.5] * 5]).recommendations
    assert found.setting is None and found.headline == "undecided"
    told = 'too few batches to tell, 5 where it takes 6; so far "a, 2 tokens" is at 2.00x plain decoding.'
    assert found.advice == told
    assert handmade([[], [], []]).recommendations == []


def test_what_the_counts_rule_out_is_noise_and_never_recommended():
    """A machine that was busy while it decoded plainly: 480 steps in 2.47 times the time of 480 target passes."""
    busy = handmade([[2.47] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(12, 12))
    for setting in (A2, A4):
        totals = busy.totals(setting)
        assert totals.speedup.is_noise and totals.to_dict()["speedup"] is None
        assert totals.statistics.num_target_forwards == 480
        assert str(busy.speedup_of(setting, 7)) == "noise"
    (found,) = busy.recommendations
    assert found.setting.is_plain and found.advice == "decode plainly, no draft is faster here."
    (found,) = handmade([[2.47] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(8, 8)).recommendations
    told = "2.47 times plain's tokens per second by the clock, where its target passes allow 1.50"
    assert found.setting is None and found.noise == (A2, A4) and told in found.advice
    assert found.advice.endswith('; left out as noise: "a, 4 tokens". Measure again on a quiet machine.')
    (found,) = handmade([[2.0] * 40, [1.0] * 40, [1.1] * 40], num_rounds=(8, 4)).recommendations
    assert (found.setting, found.runner_up, found.noise) == (A4, None, (A2,))
    assert found.advice.startswith(
        'take "a, 4 tokens", 1.82x (1.82 to 1.82) plain decoding; left out as noise: "a, 2 tokens".'
    )


def test_a_busy_while_does_not_move_the_totals():
    seconds = [[4.0] * 40, [2.0, 2.1, 2.2, 2.1] * 10, [2.5] * 40]
    quiet = handmade(seconds)
    seconds[0] = [4.0] * 20 + [40.0] * 9 + [4.0] * 11
    busy = handmade(seconds)
    assert sum(seconds[0]) / sum(seconds[1]) > 5, "a ratio of totals"
    for setting in (A2, A4):
        assert busy.totals(setting).speedup.median == quiet.totals(setting).speedup.median < 2
    assert busy.totals(Setting()).tokens_per_second == quiet.totals(Setting()).tokens_per_second == 3
    (found,), (other,) = busy.recommendations, quiet.recommendations
    assert (found.setting, found.is_clear, found.speedup.median) == (
        other.setting,
        other.is_clear,
        other.speedup.median,
    )


def test_compiled_passes_may_cost_less_than_plain_ones():
    evaluation = handmade([[2.47] * 8, [1.0] * 8, [1.1] * 8], num_rounds=(12, 12))
    evaluation.header["is_compiled"] = True
    assert str(evaluation.totals(A2).speedup) == "2.47x"
    assert Setting(draft_model="a", num_draft_tokens=2, optimize=True).is_compiled and not A2.is_compiled


def test_the_speedup_is_over_what_both_have_done():
    evaluation = handmade([[1.0, 9.0, 5.0], [1.0, 3.0], []], num_rounds=(3, 3))
    totals = evaluation.totals(A2)
    assert (totals.speedup.median, totals.speedup.num_pairs) == (2, 2) and not evaluation.is_complete
    assert evaluation.totals(A4).speedup is None
    assert evaluation.speedup_of(A2, 1).median == 3 and evaluation.speedup_of(A2, 2) is None


def test_as_a_table_and_in_a_line(tmp_path):
    evaluation = handmade([[4.0] * 8, [2.0] * 8, [2.5] * 8])
    evaluation.header["target"] = "org/big"
    table = evaluation.to_pandas()
    assert list(table.index) == [setting.name for setting in evaluation.settings]
    assert table["speedup"].tolist()[1:] == pytest.approx([2.0, 1.6]) and table["speedup"].isna().iloc[0]
    assert table.loc[A2.name, "speedup_low"] == 2.0 and "draft_acceptance_rate" in table and "temperature" in table
    evaluation.to_csv(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 4 and lines[0].startswith("setting,temperature,") and A2.name in lines[2].replace('"', "")
    assert "3 settings, 8 batches" in repr(evaluation) and "2.00x (2.00 to 2.00): a, 2 tokens" in repr(evaluation)
    by_prompt = evaluation.to_pandas("prompt")
    assert by_prompt.index.names == ["setting", "prompt"] and len(by_prompt) == 3 * 8
    assert by_prompt.loc[(A2.name, 5), "batch_speedup"] == 2.0 and by_prompt.loc[(A2.name, 5), "is_identical"]
    assert evaluation.speedups(A2) == {batch: evaluation.speedup_of(A2, batch) for batch in range(8)}
    assert len(handmade([[], [], []]).to_pandas("prompt")) == 0
    with pytest.raises(ValueError, match="`by='row'`: give 'setting'"):
        evaluation.to_csv(tmp_path / "table.csv", by="row")
    busy = handmade([[2.47] * 8, [1.0] * 8, [1.1] * 8], num_rounds=(12, 12)).to_pandas()
    assert busy["speedup"].isna().all() and busy["is_noise"].iloc[1], "noise is no number"
