"""The target's distributions as they are in use: after temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


@dataclass(frozen=True)
class SamplingParams:
    """How the target will be sampled from. A draft that is trained for this is accepted most often there.

    Attributes:
        temperature: 0 is greedy decoding. A draft then learns from the distributions at temperature 1, which hold more than
            their likeliest token.
        top_k: 0 is off.
        top_p: 1 is off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"`temperature={self.temperature}`: give 0 for greedy decoding, or more.")
        if self.top_k < 0:
            raise ValueError(f"`top_k={self.top_k}`: give 0 for all tokens, or more.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p={self.top_p}`: give more than 0, and at most 1.")

    @property
    def cuts(self) -> bool:
        """Some tokens get no probability at all."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def softness(self) -> float:
        """The temperature of the distributions."""
        return self.temperature or 1.0

    @property
    def generate_kwargs(self) -> dict:
        """Keywords of `generate`."""
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    def of_target(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the target's `logits (n, vocab)`, float32; -inf for what is cut off."""
        scores = logits.float()
        for warper in self._warpers():
            scores = warper(None, scores)  # type: ignore[arg-type]  # none of these reads the text
        return scores.log_softmax(-1)

    def of_draft(self, logits: Tensor) -> Tensor:
        """The same of the draft's, cut off nowhere: a token without probability has no gradient that would bring it back."""
        return (logits.float() / self.softness).log_softmax(-1)

    def _warpers(self) -> list[LogitsProcessor]:
        # In the order in which transformers' `generate` has them.
        warpers: list[LogitsProcessor] = []
        if self.softness != 1:
            warpers.append(TemperatureLogitsWarper(self.softness))
        if self.top_k > 0:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        return warpers
