"""The time of a run: `minutes` bound the whole of it, from the first answer to the draft on the disk."""

import time
from dataclasses import dataclass, field

from transformers import TrainerCallback

#: of a run's time, when prompts and answers end; of what is left after them, what measuring may take; what is kept for writing
PROMPTS, ANSWERS, MEASURING, WRITING = 0.1, 0.4, 0.3, 0.05
#: of a run's time, the longest measurement of one way to decode
MEASUREMENT = 0.1


@dataclass
class Deadline:
    """Counts a run's time down.

    Attributes:
        seconds: of the whole run; `None` for as long as it takes.
        begun: by `time.monotonic`.
    """

    seconds: float | None
    begun: float = field(default_factory=lambda: time.monotonic())

    @property
    def left(self) -> float:
        """Seconds until the draft has to be written."""
        if self.seconds is None:
            return float("inf")
        return self.begun + (1 - WRITING) * self.seconds - time.monotonic()

    def has_passed(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return self.seconds is not None and time.monotonic() - self.begun > share * self.seconds

    @property
    def of_a_measurement(self) -> float:
        """Seconds that measuring one way to decode may take."""
        return float("inf") if self.seconds is None else MEASUREMENT * self.seconds

    def num_steps(self, step_seconds: float) -> int:
        """Steps that fit beside measuring; at least one."""
        return max(1, int((1 - MEASURING) * self.left / step_seconds))


class EndsInTime(TrainerCallback):
    """Ends training while there is time for a last measurement; the last step is always measured and kept.

    Args:
        step_seconds: what a step takes, until one was made.
    """

    def __init__(self, deadline: Deadline, step_seconds: float):
        self.deadline, self.step_seconds = deadline, step_seconds
        self.evaluation_seconds, self.is_early = 0.0, False

    def on_step_begin(self, args, state, control, **kwargs):
        self.started = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        self.step_seconds = time.monotonic() - self.started
        is_last = state.global_step >= state.max_steps
        self.is_early = not is_last and self.deadline.left < self.step_seconds + self.evaluation_seconds
        if self.is_early or is_last:
            control.should_training_stop = control.should_evaluate = control.should_save = True

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """Fewer measurements than were planned, if they take too long."""
        if self.deadline.seconds is None or "eval_seconds" not in (metrics or {}):
            return
        self.evaluation_seconds = metrics["eval_seconds"]
        num_steps = state.max_steps - state.global_step
        num_measured = max(1, int(MEASURING * self.deadline.left / max(self.evaluation_seconds, 1e-3)))
        state.eval_steps = state.save_steps = max(state.eval_steps, -(-num_steps // num_measured))
