"""Every drafter with every rule and every schedule: the parts fit together, and none of them changes the output."""

import pytest

from hf_speculative import SpeculativeConfig, schedules
from hf_speculative.types import Costs
from hf_speculative.verification import RULES, SampledVerification
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.drafters import MAKE_DRAFTER
from tests.support.plain import agrees

pytestmark = pytest.mark.measures
CHEAP = Costs(0.01, 0.005)
MAKE_SCHEDULE = {
    schedules.Adaptive: lambda: schedules.Adaptive(6, 8, 3, costs=CHEAP),
    schedules.BestNodes: lambda: schedules.BestNodes(6, costs=CHEAP),
    schedules.Constant: lambda: schedules.Constant(3),
    schedules.HybridSchedule: lambda: schedules.HybridSchedule(schedules.Adaptive(4, 8, 3, costs=CHEAP), 8, costs=CHEAP),
    schedules.Heuristic: lambda: schedules.Heuristic(2),
    schedules.ConfidenceStop: lambda: schedules.ConfidenceStop(schedules.Constant(5), 0.2),
    schedules.AlignRows: lambda: schedules.AlignRows(schedules.Constant(4), max_lead=2),
}


@pytest.mark.parametrize("schedule", MAKE_SCHEDULE)
@pytest.mark.parametrize("rule", slow_but(RULES.values(), SampledVerification))  # which greedy calls get
@pytest.mark.parametrize("drafter", MAKE_DRAFTER)
def test_greedy_equals_plain(target, draft, drafter, rule, schedule):
    how = SpeculativeConfig(rule=rule(), schedule=MAKE_SCHEDULE[schedule]())
    call = tiny.prompts(3, width=12) | {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    drafter = MAKE_DRAFTER[drafter](draft)
    assert agrees(target, call, draft_model=drafter, speculative_config=how).num_draft_tokens > 0


QUICK = (schedules.Adaptive, schedules.ConfidenceStop)


@pytest.mark.parametrize("schedule", slow_but(MAKE_SCHEDULE, *QUICK))
@pytest.mark.parametrize("drafter", MAKE_DRAFTER)
def test_reproducible_sampling_equals_plain(target, draft, drafter, schedule):
    how = SpeculativeConfig(rule=SampledVerification(), schedule=MAKE_SCHEDULE[schedule]())
    call = tiny.prompts(3, width=12) | {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0}
    agrees(target, call, 4, draft_model=MAKE_DRAFTER[drafter](draft), speculative_config=how)
