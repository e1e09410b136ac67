"""A cell of the benchmark whose seconds are known."""

from hf_speculative import benchmark
from hf_speculative.benchmark import passes
from hf_speculative.benchmark.results import CellResult, MethodResult, Sample


def known_passes():
    found = passes.Passes(
        4, target_weight_bytes=900, draft_weight_bytes=90, target_cache_bytes=100, draft_cache_bytes=10
    )
    found.target, found.verify, found.draft = [9.0, 10.0, 30.0], [12.0], [1.0]
    return found


def known_cell(own_seconds, assisted_seconds=None, num_rounds=12, num_drafted=48):
    """48 tokens of one row: plain takes 480 s; ours 12 rounds of 4 draft tokens."""
    stages = {"draft": 0.25, "verify": 0.65, "accept": 0.06, "overhead": 0.04}
    counts = {"num_rounds": 48, "num_row_rounds": 48, "num_call_row_rounds": 64}
    plain = MethodResult("plain", False, False, 1, [Sample(480.0, 500.0, 48, **counts)] * 3)
    own = MethodResult("speculative", True, True, 1, is_bounded=True)
    own.statistics.num_draft_tokens = num_drafted
    for seconds in own_seconds:
        split = {stage: share * seconds for stage, share in stages.items()}
        own.samples.append(
            Sample(seconds, seconds + 20, 48, *[num_rounds] * 2, *[num_drafted] * 2, split, num_rounds + 5)
        )
    found = {"plain": plain, "speculative": own}
    if assisted_seconds is not None:
        samples = [Sample(assisted_seconds, assisted_seconds + 20, 48, 12)] * len(own_seconds)
        found["assisted"] = MethodResult("assisted", True, False, 1, samples)
    return CellResult(benchmark.Cell(), found, passes=known_passes())
