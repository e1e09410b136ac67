"""What a call's own rounds tell about costs, by a clock that only passes move."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call import measured_costs as costs
from hf_speculative.call.measured_costs import SETTLED, CostTable
from tests.support import tiny
from tests.support.cases import slow_but

pytestmark = pytest.mark.measures
KWARGS = {"max_new_tokens": 96, "min_new_tokens": 96, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "_known", type(costs._known)())
    monkeypatch.setattr(costs, "folder", lambda: tmp_path)


@pytest.fixture
def pair():
    target = tiny.llama(layers=3)
    return target, tiny.noisy_copy(target, noise=0)


def decoded(target, draft, batch_size=1, **kwargs):
    with hs.record() as stats:
        found = hs.generate(
            target, **tiny.prompts(batch_size), draft_model=draft, **{"do_sample": False} | KWARGS | kwargs
        )
    return found.tolist(), stats


def known(target) -> CostTable:
    (table,) = (table for kinds in costs._known[target].values() for table in kinds.values())
    return table


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "reproducible": True}])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_rounds_are_held_against_plain_ones(pair, machine, batch_size, sampling):
    ours = machine(*pair, draft_step=0.2, column=0.05, jump=0.3)
    torch.manual_seed(3)
    expected = pair[0].generate(**tiny.prompts(batch_size), **KWARGS, do_sample=sampling["do_sample"]).tolist()
    torch.manual_seed(3)
    found, _ = decoded(*pair, batch_size, **sampling)
    assert found == expected
    cells = known(pair[0]).cells
    widths = [columns for part, rows, columns in cells if (part, rows) == ("pass", batch_size)]
    assert widths
    for columns in widths:
        passes = cells["pass", batch_size, columns]
        assert passes == pytest.approx([1.3 + 0.05 * (columns - 1)] * len(passes))
    for (part, _, levels), ratios in cells.items():
        if part == "draft":
            assert min(ratios) == pytest.approx(0.2 * levels) and max(ratios) <= 0.2 * (levels + 1) * 1.001, (
                "a catch-up"
            )
    assert ours.seconds > 0


def test_a_draft_that_is_dearer_than_assumed_is_given_up_in_the_first_call(pair, machine):
    """Always right, and yet slower than plain decoding."""
    ours = machine(*pair, draft_step=1.2, column=0.0)
    before = ours.seconds
    decoded(*pair)
    assert ours.seconds - before < 1.1 * 96
    before = ours.seconds
    for _ in range(4):
        decoded(*pair)
    assert ours.seconds - before <= 1.02 * 4 * 96


SPEEDS = {
    "a jump": {"draft_step": 0.12, "column": 0.02, "jump": 0.35},
    "dear columns": {"draft_step": 0.1, "column": 0.3},
    "slow": {"step": 30.0},
    "hardly any": {"draft_step": 0.02, "column": 0.001},
}


@pytest.mark.parametrize("speed", slow_but(SPEEDS, "a jump", "dear columns"))
def test_later_calls_are_as_fast_as_the_best_constant_length(pair, machine, speed):
    """Of a draft that is always right; nothing is tried again once costs are known."""
    ours = machine(*pair, **SPEEDS[speed])

    def seconds(**kwargs):
        before = ours.seconds
        decoded(*pair, **kwargs)
        return ours.seconds - before

    best = min(seconds(num_draft_tokens=n) for n in (1, 2, 4, 6, 8, 12, 16))
    costs._known.clear()
    for _ in range(6):
        found = seconds()
    assert found < best / 0.95


def test_a_busy_machine_changes_its_speed_within_a_call(pair, machine):
    """Rounds are compared with those near them."""
    ours = machine(*pair, draft_step=0.2, column=0.05)
    ours.get_busy(after=40, slowness=3)
    decoded(*pair)
    table = known(pair[0])
    for part, rows, columns in table.cells:
        if part == "pass":
            assert table.ratio(part, rows, columns) == pytest.approx(1 + 0.05 * (columns - 1), rel=0.1)


def test_what_is_known_is_not_measured_again(pair, machine):
    machine(*pair, draft_step=0.05, column=0.01)
    for _ in range(3):
        decoded(*pair)
    table = known(pair[0])
    before, passes = table.cells, []
    for _ in range(3):
        passes.append(decoded(*pair)[1].num_target_forwards)
    assert {cell: before[cell] for cell in before if table.is_settled(cell)}.items() <= table.cells.items()
    assert passes[0] == passes[1] == passes[2]


def test_sampled_calls_are_repeatable_once_costs_are_settled(pair, machine):
    machine(*pair, draft_step=0.1, column=0.03)
    found = []
    for _ in range(2 * SETTLED):
        torch.manual_seed(0)
        found.append(decoded(*pair, do_sample=True)[0])
    assert found[-1] == found[-2] == found[-3]


def test_calls_in_several_threads_learn_from_each_other(pair):
    """Tables grow while others read them."""
    expected, _ = decoded(*pair)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(lambda _: decoded(*pair)[0], range(6))]
    finally:
        sys.setswitchinterval(interval)
    assert found == [expected] * 6
