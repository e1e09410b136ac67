"""What a user sees while a draft is trained, and the clock of its steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from transformers import TrainerCallback

#: in the log
SECONDS = "training_seconds"


@dataclass
class Watch:
    """What a caller is told while a run goes on.

    Attributes:
        answers: `(done, total)`, the target's answers.
        say: a sentence.
        part: which part of the run begins.
        shows_progress: a bar of the steps.
    """

    answers: Callable[[int, int], None] = lambda done, total: None
    say: Callable[[str], None] = lambda sentence: None
    part: Callable[[str], None] = lambda name: None
    shows_progress: bool = False


class Clock(TrainerCallback):
    """Seconds of training steps alone, without measuring and saving; kept in the log, where a resumed run finds them."""

    def __init__(self):
        self.seconds, self._start = 0.0, 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.seconds = next((entry[SECONDS] for entry in reversed(state.log_history) if SECONDS in entry), 0.0)

    def on_step_begin(self, args, state, control, **kwargs):
        self._start = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds += time.monotonic() - self._start

    def on_log(self, args, state, control, **kwargs):
        state.log_history[-1][SECONDS] = self.seconds
