"""Advise on a draft, from short evaluations at several batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..call.statistics import without_nan
from ..measuring.results import FEWEST_TOKENS, Evaluation
from ..measuring.speedup import Recommendation
from .doctor import Examination

#: names of decoding, and whether it samples
DECODINGS = {"greedy": False, "sampled": True}


@dataclass(frozen=True)
class Advice:
    """What `check(measure=True)` advises.

    Attributes:
        evaluations: by batch size, each source greedy and sampled.
        parameters: of the target, and of the draft if one was given.
        examination: of a head that was given and whose first tokens are seldom kept.
    """

    evaluations: Mapping[int, Evaluation]
    parameters: dict[str, int]
    examination: Examination | None = None

    def recommendation(self, decoding: str, batch_size: int = 1) -> Recommendation | None:
        """Which source to use; `None` where none could be measured."""
        found = self.evaluations[batch_size].recommendations
        return next((one for one in found if bool(one.best.temperature) == DECODINGS[decoding]), None)

    def pays_at(self, batch_size: int) -> bool | None:
        """Some source is clearly faster than plain decoding, greedy or sampled; `None` if it is too close to tell."""
        evaluation = self.evaluations[batch_size]
        found = evaluation.recommendations
        if not found and any(map(evaluation.is_too_short, evaluation.settings)):
            return None
        if any(recommendation.is_gain for recommendation in found):
            return True
        return None if any(recommendation.setting is None for recommendation in found) else False

    @property
    def is_worth_it(self) -> bool | None:
        """So at some batch size."""
        answers = [self.pays_at(size) for size in self.evaluations]
        return True if True in answers else None if None in answers else False

    @property
    def verdict(self) -> str:
        """The advice in a few sentences: worth it or not, and with what."""
        told = [self._about(decoding, size) for size in self.evaluations for decoding in DECODINGS]
        about_head = [] if self.examination is None else [self.examination.verdict]
        return " ".join([self._answer(), *told, *about_head])

    def _answer(self) -> str:
        answers = {size: self.pays_at(size) for size in self.evaluations}
        if len({*answers.values()}) == 1:
            whole = {True: "Worth it.", False: "Not worth it: decode plainly.", None: "Too close to tell."}
            return whole[self.is_worth_it]
        said = {True: "worth it", False: "not worth it", None: "too close to tell"}
        return ", ".join(f"{said[answer]} at batch {size}" for size, answer in answers.items()).capitalize() + "."

    def _about(self, decoding: str, batch_size: int) -> str:
        evaluation, samples = self.evaluations[batch_size], DECODINGS[decoding]
        size = f" at batch {batch_size}" if len(self.evaluations) > 1 else ""
        told = "no source could be measured."
        if (found := self.recommendation(decoding, batch_size)) is not None:
            told = found.advice
        elif any(evaluation.is_too_short(s) for s in evaluation.settings if bool(s.temperature) == samples):
            told = f"fewer than {FEWEST_TOKENS} tokens of each source tell nothing: give more `seconds`."
        return f"{decoding.capitalize()}{size}: {told}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        own: dict[str, Any] = {"is_worth_it": self.is_worth_it, "verdict": self.verdict, "parameters": self.parameters}
        own["examination"] = self.examination and self.examination.to_dict()
        names = ("totals", "recommendations", "failures")
        of_sizes = {size: evaluation.to_dict() for size, evaluation in self.evaluations.items()}
        evaluations = [{"batch_size": size, **{name: one[name] for name in names}} for size, one in of_sizes.items()]
        return without_nan(own | {"evaluations": evaluations})
