"""What calls learn from their own rounds and leave to later ones, by a clock that only passes move."""

import gc
import sys
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import pytest
import torch
from transformers import LogitsProcessor

import hf_speculative as hs
from hf_speculative.call import learned
from hf_speculative.drafting.source import DraftSource
from hf_speculative.models import artifacts
from hf_speculative.schedules import Adaptive, RoundCosts, round_costs
from hf_speculative.types import Costs
from tests.support import tiny

pytestmark = pytest.mark.measures
KWARGS = {"max_new_tokens": 64, "min_new_tokens": 64, "pad_token_id": 0}


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(DraftSource, "cost_of_token", lambda source, model: 0.3)
    target = tiny.llama(layers=3)
    return target, tiny.noisy_copy(target, noise=0)


@pytest.fixture
def machine(monkeypatch):
    """Makes the clock: passes of a pair move it by plain steps, and more for what a pass is wider than one column."""
    now, hooks = SimpleNamespace(seconds=0.0, step=1.0), []
    monkeypatch.setattr(round_costs, "time", SimpleNamespace(perf_counter=lambda: now.seconds))

    def run(steps):
        now.seconds += now.step * steps

    def make(target, draft, draft_step, jump=0.0, column=0.05):
        def target_pass(module, args, kwargs):
            width = kwargs["input_ids"].shape[1]
            run(1 + jump * (width > 1) + column * (width - 1))

        hooks.append(target.register_forward_pre_hook(target_pass, with_kwargs=True))
        hooks.append(draft.register_forward_pre_hook(lambda module, args: run(draft_step)))
        return now

    yield make
    for hook in hooks:
        hook.remove()


def decoded(target, draft, batch_size=1, **kwargs):
    call = {"do_sample": False} | KWARGS | kwargs
    with hs.record() as stats:
        found = hs.generate(target, **tiny.prompts(batch_size), draft_model=draft, **call)
    return found.tolist(), stats


def known(target) -> list[RoundCosts]:
    return [costs for pairs in learned._costs[target].values() for costs in pairs.values()]


@pytest.mark.parametrize(
    ("batch_size", "sampling"), [(1, {"do_sample": False}), (3, {"do_sample": True, "reproducible": True})]
)
def test_costs_are_learned_from_the_rounds_of_calls(pair, machine, batch_size, sampling):
    machine(*pair, draft_step=0.3, jump=0.4)
    torch.manual_seed(3)
    expected = pair[0].generate(**tiny.prompts(batch_size), **KWARGS, do_sample=sampling["do_sample"]).tolist()
    for _ in range(6):
        torch.manual_seed(3)
        assert decoded(*pair, batch_size, **sampling)[0] == expected
    (costs,) = known(pair[0])
    for n in (4, 8, 12):
        assert costs(batch_size).steps(n, n) == pytest.approx(1.4 + 0.35 * n, rel=0.12)


def test_a_draft_that_is_dearer_than_assumed_is_given_up(pair, machine):
    """Always right, and yet slower than plain decoding."""
    now = machine(*pair, draft_step=1.3)
    _, stats = decoded(*pair)
    assert stats.num_draft_tokens > 0 and now.seconds < 1.2 * 64
    before = now.seconds
    for _ in range(8):
        decoded(*pair)
    assert now.seconds - before < 1.05 * 8 * 64


def test_a_machine_that_gets_busy_does_not_make_drafts_dear(pair, machine):
    now = machine(*pair, draft_step=0.1)
    for step in (1.0, 3.0, 1.0):
        now.step = step
        for _ in range(4):
            decoded(*pair)
        (costs,) = known(pair[0])
        assert costs(1).steps(8, 8) == pytest.approx(1 + 8 * 0.15, rel=0.3)


def test_the_same_seed_gives_the_same_tokens_while_costs_are_learned_and_once_they_are_settled(pair, machine):
    """Of sampled calls, whose tokens depend on how many are drafted."""
    machine(*pair, draft_step=0.3, jump=0.4)
    found = []
    for _ in range(6):
        torch.manual_seed(0)
        found.append(decoded(*pair, do_sample=True)[0])
    assert found[0] == found[1] and found[-1] == found[-2]
    assert len({str(one) for one in found}) <= 2
    (costs,) = known(pair[0])
    assert costs.settled()[0](1) == costs.settled()[0](1) != Costs(costs.draft, costs.verify(1))


def test_what_is_known_goes_with_the_model(pair):
    decoded(*pair)
    gc.collect()
    before = len(learned._costs)
    target = tiny.llama()
    decoded(target, tiny.llama(seed=1, layers=1), max_new_tokens=8, min_new_tokens=1)
    assert len(learned._costs) == before + 1
    del target
    gc.collect()
    assert len(learned._costs) == before


@pytest.fixture
def next_process(monkeypatch, tmp_path):
    """Forgets what is in memory; files stay."""
    monkeypatch.setenv(artifacts.FOLDER, str(tmp_path))
    return lambda: monkeypatch.setattr(learned, "_costs", WeakKeyDictionary())


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_process_starts_from_the_costs_that_earlier_ones_learned(pair, machine, next_process, do_sample):
    machine(*pair, draft_step=0.3, jump=0.4)
    for _ in range(10):
        decoded(*pair, do_sample=do_sample)
    (before,) = known(pair[0])
    next_process()
    decoded(*pair, do_sample=do_sample, max_new_tokens=2, min_new_tokens=2)
    (after,) = known(pair[0])
    for kind in ((before, after), (before.settled()[0], after.settled()[0])):
        first, second = (costs(1).steps(8, 8) for costs in kind)
        assert first == pytest.approx(1.4 + 0.35 * 8, rel=0.12) and second == pytest.approx(first, rel=0.05)
    learned.restore_costs(before, (), *pair)
    learned.restore_costs(after, (), tiny.llama(layers=2), pair[1])
    assert before.path != after.path


#: among them costs that are no numbers, and that are not finite
DAMAGED = (
    "[]",
    '{"fits": {"1": [[1], [2]]}, "settled": {}}',
    '{"fits": {}, "settled": {"1": [0.1, 0.1, 0.1, 0.1, ["a"]]}}',
    '{"fits": {}, "settled": {"1": [0.1, 0.1, 0.1, 0.1, [NaN]]}}',
    "{",
)


@pytest.mark.slow
def test_a_damaged_file_of_costs_is_written_anew(pair, machine, next_process, tmp_path, caplog):
    machine(*pair, draft_step=0.3)
    decoded(*pair)
    assert not [*tmp_path.glob("costs/*")], "a few rounds say little"
    for _ in range(20):
        decoded(*pair)
    (path,) = tmp_path.glob("costs/*.json")
    for times, content in enumerate(DAMAGED, 1):
        path.write_text(content)
        next_process()
        decoded(*pair)
        assert caplog.text.count("cannot be read") == times, content
    for _ in range(20):
        decoded(*pair)
    assert path.read_text() != content


@pytest.fixture
def starts(monkeypatch):
    """The share that each call takes to be accepted before its first round, and its credit."""
    found, start = [], learned.Learned.start

    def spy(self, schedule):
        start(self, schedule)
        inner = getattr(schedule, "schedule", schedule)
        found.append((inner.chains.all_rows.rate(), inner.credit))

    monkeypatch.setattr(learned.Learned, "start", spy)
    return found


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "reproducible": True}])
def test_later_calls_start_from_what_earlier_ones_have_seen(pair, starts, sampling):
    for _ in range(2):
        torch.manual_seed(0)
        decoded(*pair, 2, **sampling)
    assert starts[0] == pytest.approx((0.7, 0.02 * 64)) and starts[1][0] > 0.75
    decoded(pair[0], tiny.noisy_copy(pair[0]), 2, **sampling)
    assert starts[2] == starts[0], "of another draft nothing is known"


@pytest.mark.parametrize("config", [{}, {"speculative_config": hs.SpeculativeConfig(schedule=Adaptive())}])
def test_sampled_calls_and_a_schedule_of_the_users_own_start_over(pair, starts, config):
    for _ in range(2):
        decoded(*pair, 2, do_sample=not config, **config)
    assert starts[0] == starts[1]


class Locked(LogitsProcessor):
    """Cannot be copied."""

    def __init__(self):
        self.frame = sys._getframe()

    def __call__(self, input_ids, scores):
        return scores


def test_a_call_in_which_nothing_may_be_drafted_teaches_nothing(pair):
    with pytest.warns(UserWarning, match="nothing is drafted in this call"):
        decoded(*pair, logits_processor=[Locked()])
    decoded(*pair)
