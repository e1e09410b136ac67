"""A draft for `model.generate` while a trainer evaluates, and what it brought as metrics."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from ...call import checks
from ...call.configuration import SpeculativeConfig
from ...call.statistics import Statistics
from ...generation import Attached, attach, own_generate
from ...models import pool

#: of `Statistics`, the counts that are metrics
COUNTS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "num_target_forwards")


@contextmanager
def with_draft(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | str | None = None,
    config: SpeculativeConfig | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[PreTrainedModel]:
    """Give `model` a draft for a while; one attached before serves where none is given.

    Args:
        device, dtype: where a draft model is moved, unless it is spread over devices, and what it is turned into.

    Yields:
        The target, without an adapter's wrapper.

    Raises:
        ValueError, TypeError: as `attach`.
    """
    target = checks.unwrap(model, "model")
    found = own_generate(target)
    if draft_model is not None or config is not None:
        # Weights that training changes would be packed anew in each evaluation.
        attach(target, draft_model, config=(config or SpeculativeConfig()).over(SpeculativeConfig(optimize=False)))
    elif found is None:  # a call may name a source of drafts
        target.generate = Attached(target, None, SpeculativeConfig())
    attached = own_generate(target)
    models = attached.models if isinstance(attached, Attached) else []
    for draft in models[1:]:
        if getattr(draft, "hf_device_map", None) is None:
            draft.to(device=device, dtype=dtype)
    try:
        yield target
    finally:
        if attached is not found and own_generate(target) is attached:
            del target.generate
            if found is not None:
                target.generate = found
            elif attached.config.optimize:  # compiled and captured passes took long to make, and are kept
                attached.unpack()
            else:
                for one in models:  # training needs the memory
                    pool.release(one)


def metrics(prefix: str, of_processes: list[Statistics]) -> dict[str, float]:
    """Counts summed over processes and rates of the sums, `prefix` before each name; empty if no call had a draft.

    Rates of what did not happen are left out. The time is that of the process that took longest.
    """
    total = Statistics()
    for statistics in of_processes:
        total += statistics
    if not total.num_calls:
        return {}
    seconds = max(sum(statistics.seconds.values()) for statistics in of_processes)
    values = {name: getattr(total, name) for name in COUNTS} | {"tokens_per_second": total.num_new_tokens / seconds}
    if total.num_draft_tokens:
        values["draft_acceptance_rate"] = total.draft_acceptance_rate
        values["mean_acceptance_length"] = total.mean_acceptance_length
    return {f"{prefix}_{name}": value for name, value in values.items()}
