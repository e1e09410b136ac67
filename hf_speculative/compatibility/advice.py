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
        trials: every source that was tried, greedy and sampled.
        parameters: of the target, and of the draft if one was given.
        examination: of a head that was given and whose first tokens are seldom kept.
    """

    draft: str | None
    trials: tuple[Trial, ...]
    parameters: dict[str, int]
    examination: Examination | None = None

    def best(self, decoding: str) -> Trial | None:
        """The source with the largest expected speedup; `None` where no source drafted anything."""
        told = [trial for trial in self.trials if trial.decoding == decoding and trial.speedup is not None]
        return max(told, key=lambda trial: trial.speedup.value, default=None)  # type: ignore[union-attr]

    @property
    def is_worth_it(self) -> bool | None:
        """Some source is expected to be faster than plain decoding, greedy or sampled; `None` if it is too close to tell."""
        best = [trial for decoding in DECODINGS if (trial := self.best(decoding)) is not None]
        if any(trial.speedup is not None and trial.speedup.is_gain for trial in best):
            return True
        return None if any(trial.speedup is not None and not trial.speedup.is_loss for trial in best) else False

    @property
    def verdict(self) -> str:
        """The advice in a few sentences: worth it or not, with what, and why not with the draft that was given."""
        answer = {True: "Worth it.", False: "Not worth it: decode plainly.", None: "Too close to tell."}[
            self.is_worth_it
        ]
        told = [self._about(decoding) for decoding in DECODINGS]
        about_head = [] if self.examination is None else [self.examination.verdict]
        return " ".join([answer, *told, *filter(None, map(self._about_draft, DECODINGS)), *about_head])

    def _about(self, decoding: str) -> str:
        best = self.best(decoding)
        if best is None or best.speedup is None:
            return f"{decoding.capitalize()}: no source drafted anything on this text."
        if best.speedup.is_gain:
            return f"{decoding.capitalize()}: take {called(best)}, {best.speedup} expected."
        open_or_not = "no source is expected to gain" if best.speedup.is_loss else "none clearly gains"
        return f"{decoding.capitalize()}: {open_or_not}; the best, {called(best)}, is at {best.speedup}."

    def _about_draft(self, decoding: str) -> str | None:
        """Why not the draft that was given, where it does not gain or another source is better."""
        trial = next((t for t in self.trials if t.source == self.draft and t.decoding == decoding), None)
        if trial is None or (trial is self.best(decoding) and trial.speedup is not None and trial.speedup.value > 1):
            return None
        name = f"The draft, {decoding}"
        if trial.failure is not None:
            return f"{name}: it could not be tried, {trial.failure.rstrip('.')}."
        if trial.speedup is None:
            return f"{name}: it drafted nothing on this text."
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
