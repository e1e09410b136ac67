"""Is it worth it? What the trials of several sources say together, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..call.statistics import without_nan
from ..reports.formats import percent
from .doctor import Examination
from .trials import DECODINGS, Trial


@dataclass(frozen=True)
class Advice:
    """What `check(measure=True)` advises.

    Attributes:
        draft: the name of the source of the draft that was given; `None` without one.
        trials: every source that was tried, greedy and sampled, in batches of each size.
        parameters: of the target, and of the draft if one was given.
        examination: of a head that was given and whose first tokens are seldom kept.
    """

    draft: str | None
    trials: tuple[Trial, ...]
    parameters: dict[str, int]
    examination: Examination | None = None

    @property
    def batch_sizes(self) -> list[int]:
        return list(dict.fromkeys(trial.batch_size for trial in self.trials)) or [1]

    def best(self, decoding: str, batch_size: int = 1) -> Trial | None:
        """The source with the largest expected speedup; `None` where no source drafted anything."""
        told = [trial for trial in self._of(decoding, batch_size) if trial.speedup is not None]
        return max(told, key=lambda trial: trial.speedup.value, default=None)  # type: ignore[union-attr]

    def pays_at(self, batch_size: int) -> bool | None:
        """Some source is expected to be faster than plain decoding, greedy or sampled; `None` if it is too close to tell."""
        best = [trial for decoding in DECODINGS if (trial := self.best(decoding, batch_size)) is not None]
        if any(trial.speedup is not None and trial.speedup.is_gain for trial in best):
            return True
        return None if any(trial.speedup is not None and not trial.speedup.is_loss for trial in best) else False

    @property
    def is_worth_it(self) -> bool | None:
        """So at some batch size."""
        answers = [self.pays_at(size) for size in self.batch_sizes]
        return True if True in answers else None if None in answers else False

    @property
    def verdict(self) -> str:
        """The advice in a few sentences: worth it or not, with what, and why not with the draft that was given."""
        kinds = [(decoding, size) for size in self.batch_sizes for decoding in DECODINGS]
        about_head = [] if self.examination is None else [self.examination.verdict]
        told = [self._about(*kind) for kind in kinds]
        return " ".join(
            [self._answer(), *told, *filter(None, (self._about_draft(*kind) for kind in kinds)), *about_head]
        )

    def _answer(self) -> str:
        sizes = self.batch_sizes
        answers = {size: self.pays_at(size) for size in sizes}
        if len({*answers.values()}) == 1:
            return {True: "Worth it.", False: "Not worth it: decode plainly.", None: "Too close to tell."}[
                answers[sizes[0]]
            ]
        said = {True: "worth it", False: "not worth it", None: "too close to tell"}
        return ", ".join(f"{said[answer]} at batch {size}" for size, answer in answers.items()).capitalize() + "."

    def _of(self, decoding: str, batch_size: int) -> list[Trial]:
        return [trial for trial in self.trials if (trial.decoding, trial.batch_size) == (decoding, batch_size)]

    def _place(self, decoding: str, batch_size: int) -> str:
        """What a sentence is about: the batch size where there are several."""
        return decoding if len(self.batch_sizes) == 1 else f"{decoding} at batch {batch_size}"

    def _about(self, decoding: str, batch_size: int) -> str:
        best, place = self.best(decoding, batch_size), self._place(decoding, batch_size).capitalize()
        if best is None or best.speedup is None:
            return f"{place}: no source drafted anything on this text."
        if best.speedup.is_gain:
            return f"{place}: take {called(best)}, {best.speedup} expected."
        open_or_not = "no source is expected to gain" if best.speedup.is_loss else "none clearly gains"
        return f"{place}: {open_or_not}; the best, {called(best)}, is at {best.speedup}."

    def _about_draft(self, decoding: str, batch_size: int) -> str | None:
        """Why not the draft that was given, where it does not gain or another source is better."""
        trial = next((trial for trial in self._of(decoding, batch_size) if trial.source == self.draft), None)
        best = self.best(decoding, batch_size)
        if trial is None or (trial is best and trial.speedup is not None and trial.speedup.value > 1):
            return None
        name = f"The draft, {self._place(decoding, batch_size)}"
        if trial.failure is not None:
            return f"{name}: it could not be tried, {trial.failure.rstrip('.')}."
        if trial.speedup is None:
            return f"{name}: it drafted nothing on this text."
        if trial.speedup.low is None:
            return f"{name}: {trial.speedup}."
        if trial.speedup.value <= 1:
            return f"{name}: {trial.speedup} expected; {reason(trial)}."
        if not trial.speedup.is_gain:
            return f"{name}: {trial.speedup} expected, too close to tell."
        return f"{name}: {trial.speedup} expected."

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        own: dict[str, Any] = {"is_worth_it": self.is_worth_it, "verdict": self.verdict, "parameters": self.parameters}
        own["examination"] = self.examination and self.examination.to_dict()
        return without_nan(own | {"trials": [trial.to_dict() for trial in self.trials]})


def called(trial: Trial) -> str:
    """The call that asks for a trial's source, at its best draft length."""
    options = dict(trial.options)
    if "prompt_lookup_num_tokens" in options:
        options["prompt_lookup_num_tokens"] = trial.draft_length or options["prompt_lookup_num_tokens"]
    elif trial.draft_length is not None:
        options["num_draft_tokens"] = trial.draft_length
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def reason(trial: Trial) -> str:
    """Why a trial gains no more: what a round costs, and how much of it would have to be kept."""
    first = trial.acceptance[0] if trial.acceptance else 0.0
    cost, needed = f"a round takes {trial.cost_of_round:.2f} plain steps", trial.needed_acceptance
    if trial.best_case is not None and trial.best_case <= 1:
        return f"{cost}, more than it could bring if every draft token were kept"
    if needed is None:
        length = trial.mean_acceptance_length
        return (
            f"{cost} and brings {length:.2f} tokens where it drafts, {trial.num_drafts} of {len(trial.drafted)} rounds"
        )
    kept = f"the target keeps {percent(first)} of the first draft tokens"
    return f"{kept}, where it takes {percent(needed)} of each to gain: {cost}"
