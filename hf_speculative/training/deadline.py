"""The time budget `minutes` of a run, from the first answer to the saved draft, and its progress."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

from ..measuring.plan import Processes

#: of a run's time, when prompts and answers end; of what is left after them, what measuring may take; what is kept for writing
PROMPTING, ANSWERING, MEASURING, WRITING = 0.1, 0.4, 0.3, 0.05
#: of a run's time, the longest measurement of one way to decode
MEASUREMENT = 0.1
#: of steps alone, in the log
SECONDS = "training_seconds"


@dataclass
class Deadline:
    """Count down a run's time.

    Attributes:
        seconds: of the whole run; infinite for as long as it takes.
        begun: by `time.monotonic`.
    """

    seconds: float
    begun: float = field(default_factory=lambda: time.monotonic())

    @property
    def left(self) -> float:
        """Seconds until the draft has to be written."""
        return self.begun + (1 - WRITING) * self.seconds - time.monotonic()

    def has_passed(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return time.monotonic() - self.begun > share * self.seconds

    def num_steps(self, step_seconds: float) -> int:
        """Steps that fit beside measuring; at least one."""
        return max(1, int((1 - MEASURING) * self.left / step_seconds))


@dataclass
class Watch:
    """Callbacks for the progress of a run.

    Attributes:
        count: `(done, total)` of the part that goes on: prompts, answers, steps.
        say: a sentence.
        part: which part of the run begins.
    """

    count: Callable[[int, int], None] = lambda done, total: None
    say: Callable[[str], None] = lambda sentence: None
    part: Callable[[str], None] = lambda name: None


def seconds_of(log_history: list[dict[str, Any]]) -> float:
    """Of training steps alone, as a Trainer's log has them."""
    return next((entry[SECONDS] for entry in reversed(log_history) if SECONDS in entry), 0.0)


class Pace(TrainerCallback):
    """Times steps, and ends training while there is time for a last measurement; the last step is always measured and kept.

    Args:
        step_seconds: what a step takes, until one was made.
        watch: is told of steps and measurements.
        processes: those that train together, of which the first one's clock counts.

    Attributes:
        seconds: of training steps alone; kept in the log, where a resumed run finds them.
    """

    def __init__(self, deadline: Deadline, step_seconds: float, watch: Watch, processes: Processes):
        self.deadline, self.step_seconds, self.watch, self.processes = deadline, step_seconds, watch, processes
        self.seconds, self.evaluation_seconds, self.is_early = 0.0, 0.0, False

    def on_train_begin(self, args, state, control, **kwargs):
        self.seconds = seconds_of(state.log_history)

    def on_log(self, args, state, control, **kwargs):
        state.log_history[-1][SECONDS] = self.seconds

    def on_step_begin(self, args, state, control, **kwargs):
        self.started = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        self.step_seconds = time.monotonic() - self.started
        self.seconds += self.step_seconds
        self.watch.count(state.global_step, state.max_steps)
        is_last = state.global_step >= state.max_steps
        if not math.isinf(self.deadline.seconds):
            (is_over, *_) = self.processes.gather([self.deadline.left < self.step_seconds + self.evaluation_seconds])
            self.is_early = is_over and not is_last
        if self.is_early or is_last:
            control.should_training_stop = control.should_evaluate = control.should_save = True

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        """Fewer measurements than were planned, if they take too long."""
        length = metrics["eval_acceptance_length"]
        self.watch.say(f"Acceptance length after step {state.global_step:,}: {length:.2f}.")
        if math.isinf(self.deadline.seconds):
            return
        left, self.evaluation_seconds = self.processes.gather([(self.deadline.left, metrics["eval_seconds"])])[0]
        num_steps = state.max_steps - state.global_step
        num_measured = max(1, int(MEASURING * left / max(self.evaluation_seconds, 1e-3)))
        state.eval_steps = state.save_steps = max(state.eval_steps, -(-num_steps // num_measured))
