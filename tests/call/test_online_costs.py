"""What a call's own rounds tell about costs, by a clock that only passes move."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call import measured_costs as costs
from hf_speculative.call.online_costs import WINDOW
from hf_speculative.call.timings import (
    EACH,
    FIRST_CALLS,
    LONG_CALL,
    MOST_OF_CALLS,
    MOST_VAIN,
    PLAIN,
    CostTable,
    Session,
    Timings,
    costs_of,
)
from tests.support import tiny

pytestmark = pytest.mark.measures
KWARGS = {"max_new_tokens": 64, "min_new_tokens": 64, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    """But by the calls themselves."""
    monkeypatch.setattr(costs, "_known", type(costs._known)())
    monkeypatch.setattr(costs, "SHARE", 0.0)
    monkeypatch.setattr(costs.Probe, "_assumed_per_token", lambda probe, num_rows: 0.3)


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


def known(target) -> CostTable | None:
    found = [known for pairs in costs._known[target].values() for known in pairs.values()]
    return found[0] if found else None


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "reproducible": True}])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_rounds_of_a_call_are_held_against_plain_ones(pair, machine, batch_size, sampling):
    ours = machine(*pair, draft_step=0.2, column=0.05, jump=0.3)
    torch.manual_seed(3)
    expected = pair[0].generate(**tiny.prompts(batch_size), **KWARGS, do_sample=sampling["do_sample"]).tolist()
    torch.manual_seed(3)
    found, stats = decoded(*pair, batch_size, **sampling)
    assert found == expected and stats.seconds["probe"] == 0
    timings = known(pair[0])[batch_size, 0]
    lengths = {n for session in timings.sessions for _, n in session.times} - {0}
    assert lengths and all(session.of_call and len(session.times) > 1 for session in timings.sessions)
    for n in lengths:
        assert timings.ratios(n) == pytest.approx([ours.curve[n]] * len(timings.ratios(n)))


def test_a_draft_that_is_dearer_than_assumed_is_given_up_in_the_first_call(pair, machine):
    """Always right, and yet slower than plain decoding."""
    ours = machine(*pair, draft_step=1.2, column=0.0)
    before = ours.seconds
    _, stats = decoded(*pair)
    assert stats.num_draft_tokens > 0
    assert ours.seconds - before < 1.2 * 64
    before, drafted = ours.seconds, 0
    for _ in range(4):
        _, stats = decoded(*pair)
        drafted += stats.num_draft_tokens
    assert drafted == 0 and ours.seconds - before <= 4 * 64 * 1.001


def test_calls_whose_tokens_depend_on_it_keep_nothing(pair, machine):
    machine(*pair)
    expected = []
    for _ in range(2):
        torch.manual_seed(0)
        expected.append(decoded(*pair, do_sample=True)[0])
    assert expected[0] == expected[1]
    assert not known(pair[0]).sessions_of(1)


def test_a_busy_machine_changes_its_speed_within_a_call(pair, machine):
    """Rounds are compared with those near them."""
    ours = machine(*pair, draft_step=0.2, column=0.05)
    ours.get_busy(after=60, slowness=3)
    decoded(*pair, max_new_tokens=100, min_new_tokens=100)
    best = known(pair[0])[1, 0].best()
    for n in best:
        assert best[n] / best[0] == pytest.approx(ours.curve[n], rel=0.1)


def test_later_calls_compare_now_and_then(pair, machine):
    """Most calls run no plain round for it."""
    machine(*pair, draft_step=0.05, column=0.01)
    passes = []
    for _ in range(2 * EACH):
        _, stats = decoded(*pair)
        passes.append(stats.num_target_forwards)
    assert min(passes) < max(passes)
    assert passes[FIRST_CALLS : EACH - 1] == [min(passes)] * (EACH - 1 - FIRST_CALLS)
    assert passes[2 * EACH - 1] > min(passes)


def test_short_calls_run_no_plain_rounds(pair, machine):
    machine(*pair, draft_step=0.05, column=0.01)
    for _ in range(3):
        decoded(*pair, max_new_tokens=LONG_CALL - 1, min_new_tokens=1)
    assert not known(pair[0]).sessions_of(1)


def test_calls_in_several_threads_learn_from_each_other(pair):
    """Sessions grow while others read them."""
    expected, _ = decoded(*pair)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(lambda _: decoded(*pair)[0], range(6))]
    finally:
        sys.setswitchinterval(interval)
    assert found == [expected] * 6
    assert any(session.of_call for session in known(pair[0]).sessions_of(1))


def test_a_call_does_not_wait_for_another_that_measures(pair, machine):
    """Which may be compiling."""
    machine(*pair)
    decoded(*pair)
    with ThreadPoolExecutor(1) as pool, costs._lock:
        probe = SimpleNamespace(found=known(pair[0]), num_rows=1)
        assert pool.submit(costs.Probe.so_far, probe).result(timeout=30) is None
        assert pool.submit(costs.Probe.keep, probe, Session()).result(timeout=30) is False
    assert costs.Probe.so_far(probe) is not None and costs.Probe.keep(probe, Session())


def test_sessions_of_calls_give_way():
    known = CostTable()
    probed = Session()
    known.keep(probed, 1)
    for _ in range(100):
        session = Session(of_call=True)
        for _ in range(WINDOW):
            known.keep(session, 1)
    assert known.sessions_of(1)[0] is probed and known.sessions_of(1)[-1] is session
    assert len(known.sessions_of(1)) == 1 + MOST_OF_CALLS


def test_tries_that_have_time_for_plain_steps_only_end():
    """Until a call has more time; and nothing is kept of them."""
    known = CostTable()
    known[1, 0] = Timings(0.1, (1, 0), known.sessions_of(1))
    for _ in range(MOST_VAIN):
        assert not known.is_vain(4.8)
        session = Session()
        known.keep(session, 1)
        session.add(0, 1.0)
        known.settle(session, 1, 4.8)
    assert known.is_vain(4.8) and known.is_vain(4.0) and not known.is_vain(6.4)
    assert len(known.sessions_of(1)) == 1
    session.add(1, 1.5)
    known.settle(session, 1, 6.4)
    assert not known.is_vain(4.8)


def test_two_times_that_noise_has_made_alike_promise_no_long_drafts():
    session = Session()
    session.times |= {PLAIN: [1.0], (0, 2): [2.0], (0, 3): [2.0]}
    found = costs_of({(1, 0): Timings(0.1, (0, 1, 4), [session])}).curve(1, 16)
    assert found[:4] == [1.0, 1.5, 2.0, 2.0]
    assert found[16] == pytest.approx(2.0 + 13 / 6)


def test_fewer_rows_take_no_longer():
    """One row was timed while the machine was slower."""
    slow, fast = Session(), Session()
    slow.times |= {PLAIN: [3.0], (0, 1): [6.0]}
    fast.times |= {PLAIN: [2.0], (0, 1): [3.0]}
    found = costs_of({(size, 0): Timings(0.1, (0, 1), [session]) for size, session in ((1, slow), (8, fast))})
    assert found.rounds == {1: {0: 2.0, 1: 4.0}, 8: {0: 2.0, 1: 3.0}}
