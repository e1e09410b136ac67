"""Every drafter with every rule and every schedule: the parts fit together, and none of them changes the output."""

import pytest
from transformers import set_seed

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.drafting import DRAFTERS
from hf_speculative.schedules import (
    SCHEDULES,
    Adaptive,
    AlignRows,
    BestNodes,
    ConfidenceStop,
    Constant,
    Costs,
    Heuristic,
    HybridSchedule,
)
from hf_speculative.verification import RULES, SampledVerification
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.drafters import MAKE_DRAFTER

pytestmark = pytest.mark.measures
CHEAP = Costs(0.01, 0.005)
MAKE_SCHEDULE = {
    Adaptive: lambda: Adaptive(6, 8, 3, costs=CHEAP),
    BestNodes: lambda: BestNodes(6, costs=CHEAP),
    Constant: lambda: Constant(3),
    HybridSchedule: lambda: HybridSchedule(Adaptive(4, 8, 3, costs=CHEAP), 8, costs=CHEAP),
    Heuristic: lambda: Heuristic(2),
    ConfidenceStop: lambda: ConfidenceStop(Constant(5), 0.2),
    AlignRows: lambda: AlignRows(Constant(4), max_lead=2),
}


def test_every_shipped_part_is_in_the_matrix():
    assert set(MAKE_DRAFTER) == set(DRAFTERS) and set(MAKE_SCHEDULE) == set(SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rule", slow_but(RULES.values(), SampledVerification))  # which greedy calls get
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_equals_plain(target, draft, drafter, rule, schedule):
    config = {
        "draft_model": MAKE_DRAFTER[drafter](draft),
        "speculative_config": SpeculativeConfig(rule=rule(), schedule=MAKE_SCHEDULE[schedule]()),
    }
    kwargs = tiny.prompts(3, width=12) | {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    with hs.record() as stats:
        found = hs.generate(target, **kwargs, **config)
    assert found.tolist() == target.generate(**kwargs).tolist() and stats.num_draft_tokens > 0


@pytest.mark.parametrize("schedule", slow_but(SCHEDULES, Adaptive, ConfidenceStop))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_reproducible_sampling_equals_plain(target, draft, drafter, schedule):
    config = {
        "draft_model": MAKE_DRAFTER[drafter](draft),
        "speculative_config": SpeculativeConfig(
            rule=SampledVerification(), schedule=MAKE_SCHEDULE[schedule](), reproducible=True
        ),
    }
    kwargs = tiny.prompts(3, width=12) | {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0}
    set_seed(4)
    expected = target.generate(**kwargs)
    set_seed(4)
    assert hs.generate(target, **kwargs, **config).tolist() == expected.tolist()
