"""What a user sees while a draft is trained, and the clock of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tqdm.auto import tqdm
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


class Shown(TrainerCallback):
    """The progress bar: steps, the loss, and the acceptance length on held-out prompts, first and last."""

    def __init__(self, is_shown: bool):
        self.is_shown = is_shown
        self.told: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        is_shown = self.is_shown and state.is_world_process_zero
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, unit="step", disable=not is_shown, dynamic_ncols=True
        )

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            self.told["loss"] = f"{float(logs['loss']):.3f}"
        self._tell()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        length = (metrics or {}).get("eval_acceptance_length")
        if length is not None:
            first = self.told.get("tokens a round", "").split(" ")[0]
            self.told["tokens a round"] = f"{first} -> {length:.2f}" if first else f"{length:.2f}"
        self._tell()

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()

    def tell_part(self, name: str) -> None:
        """Which part of the run takes the time now."""
        if hasattr(self, "bar"):
            self.bar.set_description_str(name)

    def _tell(self) -> None:
        self.bar.set_postfix_str(", ".join(f"{name} {value}" for name, value in self.told.items()))
