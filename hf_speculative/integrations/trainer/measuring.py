"""`model.generate` with a draft for a while, counted and timed, whoever calls it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...call import checks
from ...call.configuration import SpeculativeConfig
from ...call.generation_settings import setting_of
from ...call.option_types import WholeNumber
from ...call.options import plain_kwargs
from ...call.statistics import RowStatistics, record
from ...generation import Attached, attach, own_generate
from ...models import device_of, pool
from ...reports.timing import timed

#: `speedup_batches`
NUM_PLAIN = WholeNumber("decodes no batch plainly: give 0 or more.", minimum=0)


@dataclass
class Counts:
    """The counts of one evaluation: whole numbers, so that those of several processes can be summed.

    Attributes:
        nanoseconds: time in `generate`, of calls with a draft.
        num_paired_tokens, paired_nanoseconds: new tokens and time of those calls that were repeated plainly.
        num_plain_tokens, plain_nanoseconds: of their plain repetitions.

    The others are those of `hf_speculative.Statistics`.
    """

    num_calls: int = 0
    num_rounds: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_target_forwards: int = 0
    nanoseconds: int = 0
    num_paired_tokens: int = 0
    paired_nanoseconds: int = 0
    num_plain_tokens: int = 0
    plain_nanoseconds: int = 0

    def summed_over_processes(self, accelerator) -> Counts:
        """The counts summed over all processes; the time is that of the process that took longest."""
        mine = torch.tensor([astuple(self)], dtype=torch.int64, device=accelerator.device)
        everyone = accelerator.gather(mine)
        summed = Counts(*everyone.sum(0).tolist())
        summed.nanoseconds = int(everyone[:, [f.name for f in fields(self)].index("nanoseconds")].max())
        return summed

    def metrics(self, prefix: str) -> dict[str, float]:
        """By name, `prefix` before each; without the rates of what did not happen, and empty if no call had a draft."""
        if not self.num_calls:
            return {}
        shared = {f.name for f in fields(RowStatistics)} & {f.name for f in fields(self)}
        rates = RowStatistics(**{name: getattr(self, name) for name in shared})
        values = {
            "num_spec_steps": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_target_forwards": self.num_target_forwards,
            "tokens_per_second": rates.num_new_tokens / (self.nanoseconds * 1e-9),
        }
        if self.num_draft_tokens:
            values["draft_acceptance_rate"] = rates.draft_acceptance_rate
            values["mean_acceptance_length"] = rates.mean_acceptance_length
        if self.num_plain_tokens:
            plain_speed = self.num_plain_tokens / self.plain_nanoseconds
            values["speedup"] = self.num_paired_tokens / self.paired_nanoseconds / plain_speed
        return {f"{prefix}_{name}": value for name, value in values.items()}


class Measured(Attached):
    """`generate` of an attached model that counts; the first calls are repeated plainly, if so asked, to compare times.

    Installed by `measure`, as a context manager or until `detach()`.
    """

    def __init__(self, model: PreTrainedModel, attached: Attached | None, num_plain: int, found):
        draft_model = None if attached is None else attached.draft_model
        super().__init__(model, draft_model, SpeculativeConfig() if attached is None else attached.config)
        self.num_plain, self.counts, self.found = num_plain, Counts(), found

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *exception) -> None:
        self.detach()

    def detach(self) -> None:
        """Leave the model as it was."""
        if own_generate(self.model) is not self:  # attached or detached by somebody else since
            return
        _restore(self.model, self.found)
        if self.found is not None:
            return
        if self.config.optimize:  # compiled and captured passes took long to make, and are kept
            self.unpack()
            return
        for model in self.models:  # training needs the memory
            pool.release(model)

    def take(self) -> Counts:
        """The counts since the last time."""
        counts, self.counts = self.counts, Counts()
        return counts

    def __call__(self, *args, **kwargs):
        is_repeated = self.counts.num_calls < self.num_plain
        before = _random_state(self.model) if is_repeated else {}
        with record() as statistics:
            output, nanoseconds = self._timed(super().__call__, args, kwargs)
        if statistics.num_calls == 0:  # this call was plain
            return output
        counts, num_tokens = self.counts, statistics.num_new_tokens
        for name in (f.name for f in fields(counts) if hasattr(statistics, f.name)):
            setattr(counts, name, getattr(counts, name) + getattr(statistics, name))
        counts.nanoseconds += nanoseconds
        if is_repeated:
            repeated, plain_nanoseconds = self._repeated(before, args, kwargs)
            filler = self._filler(kwargs)
            counts.num_paired_tokens += num_tokens
            counts.paired_nanoseconds += nanoseconds
            # Greedy rows end where they ended before, sampled ones elsewhere.
            counts.num_plain_tokens += num_tokens + _num_filled(repeated, filler) - _num_filled(output, filler)
            counts.plain_nanoseconds += plain_nanoseconds
        return output

    def _repeated(self, random_state: dict, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Repeats the call plainly, from the same random state, which is then put back."""
        plain = plain_kwargs(self.model, kwargs) | {"streamer": None}
        after = _random_state(self.model)
        _set_random_state(random_state)
        try:
            return self._timed(self.plain_generate, args, {"use_cache": True} | plain)
        finally:
            _set_random_state(after)

    def _timed(self, generate, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """What `generate` returns, and the nanoseconds it took: whole numbers, to be summed over processes."""
        output, seconds = timed(lambda: generate(*args, **kwargs), device_of(self.model))
        return output, round(seconds * 1e9)

    def _filler(self, kwargs: dict[str, Any]) -> int | None:
        """The token after the end of a row; `None` if rows do not end early."""
        for name in ("pad_token_id", "eos_token_id"):
            found = setting_of(self.model, kwargs, name)
            if found is not None:
                return found[0] if isinstance(found, (list, tuple)) else int(found)
        return None


def measure(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | str | None = None,
    config: SpeculativeConfig | None = None,
    num_plain: int = 0,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Measured:
    """Give `model` a draft and count what it brings; a draft attached before serves where none is given.

    Args:
        num_plain: calls to repeat plainly, until the counts are taken.
        device, dtype: where a draft model is moved, unless it is spread over devices, and what it is turned into.

    Raises:
        ValueError, TypeError: as `attach`.
    """
    target = checks.unwrap(model, "model")
    attached = found = own_generate(target)
    if draft_model is not None or config is not None:
        # Weights that training changes would be packed anew in each evaluation.
        config = (config or SpeculativeConfig()).over(SpeculativeConfig(optimize=False))
        attach(target, draft_model, config=config)
        attached = target.generate
        _restore(target, found)
    if attached is not None and not isinstance(attached, Attached):  # somebody else's, in which no draft takes part
        return Measured(target, None, num_plain, found)
    for draft in [] if attached is None else attached.models[1:]:
        if getattr(draft, "hf_device_map", None) is None:
            draft.to(device=device, dtype=dtype)
    target.generate = meter = Measured(target, attached, num_plain, found)
    return meter


def _restore(model: PreTrainedModel, generate) -> None:
    vars(model).pop("generate", None)
    if generate is not None:
        model.generate = generate


def _num_filled(output, filler: int | None) -> int:
    """Entries of the sequences `(batch, length)` up to each row's end."""
    sequences: Tensor = getattr(output, "sequences", output)
    if filler is None:
        return sequences.numel()
    num_after_the_end = (sequences == filler).flip(1).int().cumprod(1).sum()
    return sequences.numel() - int(num_after_the_end)


def _random_state(model: PreTrainedModel) -> dict[torch.device, Tensor]:
    states = {torch.device("cpu"): torch.get_rng_state()}
    device = device_of(model)
    if device.type != "cpu":
        states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_random_state(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
