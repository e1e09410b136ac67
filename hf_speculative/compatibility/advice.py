"""Is it worth it? What short evaluations at several batch sizes say together, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..call.statistics import without_nan
from ..measuring.recommendation import Recommendation
from ..measuring.results import Evaluation
from ..measuring.totals import FEWEST_TOKENS, Totals
from ..reports.formats import percent
from .doctor import Examination

#: names of decoding, and whether it samples
DECODINGS = {"greedy": False, "sampled": True}


@dataclass(frozen=True)
class Advice:
    """What `check(measure=True)` advises.

    Attributes:
        draft: what settings call the draft that was given; `None` without one that fits.
        evaluations: by batch size, each source greedy and sampled.
        parameters: of the target, and of the draft if one was given.
        examination: of a head that was given and whose first tokens are seldom kept.
    """

    draft: str | None
    evaluations: Mapping[int, Evaluation]
    parameters: dict[str, int]
    examination: Examination | None = None

    @property
    def batch_sizes(self) -> list[int]:
        """How many texts were written side by side."""
        return list(self.evaluations)

    def recommendation(self, decoding: str, batch_size: int = 1) -> Recommendation | None:
        """Which source to use; `None` where none could be measured."""
        evaluation, samples = self.evaluations[batch_size], DECODINGS[decoding]
        temperatures = (t for t in evaluation.temperatures if bool(t) == samples)
        return next((found for t in temperatures if (found := evaluation.recommendation(t)) is not None), None)

    def best(self, decoding: str, batch_size: int = 1) -> Totals | None:
        """The source with the highest speedup; `None` where none could be measured."""
        found = self.recommendation(decoding, batch_size)
        return None if found is None else self.evaluations[batch_size].totals(found.best)

    def pays_at(self, batch_size: int) -> bool | None:
        """Some source is clearly faster than plain decoding, greedy or sampled; `None` if it is too close to tell."""
        found = [r for decoding in DECODINGS if (r := self.recommendation(decoding, batch_size)) is not None]
        if not found and any(map(self.evaluations[batch_size].is_too_short, self.evaluations[batch_size].settings)):
            return None
        if any(recommendation.is_gain for recommendation in found):
            return True
        return None if any(recommendation.setting is None for recommendation in found) else False

    @property
    def is_worth_it(self) -> bool | None:
        """So at some batch size."""
        answers = [self.pays_at(size) for size in self.batch_sizes]
        return True if True in answers else None if None in answers else False

    @property
    def verdict(self) -> str:
        """The advice in a few sentences: worth it or not, with what, and what the draft that was given brings."""
        kinds = [(decoding, size) for size in self.batch_sizes for decoding in DECODINGS]
        about_head = [] if self.examination is None else [self.examination.verdict]
        told = (about for kind in kinds for about in (self._about(*kind), self._about_draft(*kind)))
        return " ".join([self._answer(), *filter(None, told), *about_head])

    def _answer(self) -> str:
        answers = {size: self.pays_at(size) for size in self.batch_sizes}
        if len({*answers.values()}) == 1:
            whole = {True: "Worth it.", False: "Not worth it: decode plainly.", None: "Too close to tell."}
            return whole[answers[self.batch_sizes[0]]]
        said = {True: "worth it", False: "not worth it", None: "too close to tell"}
        return ", ".join(f"{said[answer]} at batch {size}" for size, answer in answers.items()).capitalize() + "."

    def _place(self, decoding: str, batch_size: int) -> str:
        """What a sentence is about: the batch size where there are several."""
        return decoding if len(self.batch_sizes) == 1 else f"{decoding} at batch {batch_size}"

    def _about(self, decoding: str, batch_size: int) -> str:
        found, place = self.recommendation(decoding, batch_size), self._place(decoding, batch_size).capitalize()
        return f"{place}: {self._why_unknown(decoding, batch_size) if found is None else found.advice}"

    def _why_unknown(self, decoding: str, batch_size: int) -> str:
        evaluation, samples = self.evaluations[batch_size], DECODINGS[decoding]
        if any(evaluation.is_too_short(s) for s in evaluation.settings if bool(s.temperature) == samples):
            return f"fewer than {FEWEST_TOKENS} tokens of each source tell nothing: give more `seconds`."
        return "no source could be measured."

    def _about_draft(self, decoding: str, batch_size: int) -> str | None:
        """What the draft that was given brings, where another source is better or none is."""
        evaluation, best = self.evaluations[batch_size], self.best(decoding, batch_size)
        own = [s for s in evaluation.settings if s.draft == self.draft and bool(s.temperature) == DECODINGS[decoding]]
        if self.draft is None or (best is not None and best.setting in own and not best.drafts_nothing):
            return None
        name = f"The draft, {self._place(decoding, batch_size)}"
        found = [totals for totals in map(evaluation.totals, own) if totals.speedup is not None]
        if not found:
            if any(map(evaluation.is_too_short, own)):
                return None
            failed = next((f.message for f in evaluation.failures if f.setting in {s.name for s in own}), "no time")
            return f"{name}: it could not be tried, {failed.rstrip('.')}."
        totals = found[0]
        return f"{name}: {totals.speedup}, and {percent(first_kept(totals))} of its first tokens are kept."

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        own: dict[str, Any] = {"is_worth_it": self.is_worth_it, "verdict": self.verdict, "parameters": self.parameters}
        own["examination"] = self.examination and self.examination.to_dict()
        names = ("totals", "recommendations", "failures")
        of_sizes = {size: evaluation.to_dict() for size, evaluation in self.evaluations.items()}
        evaluations = [{"batch_size": size, **{name: one[name] for name in names}} for size, one in of_sizes.items()]
        return without_nan(own | {"evaluations": evaluations})


def first_kept(totals: Totals) -> float:
    """Share of drafts whose first token was kept."""
    rates = totals.statistics.per_position_acceptance_rate if totals.statistics is not None else []
    return rates[0] if rates else 0.0
