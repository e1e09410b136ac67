"""The target's distributions in use: after temperature, top-k and top-p."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..command.settings import check_ranges, setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How the target will be sampled from. A draft that is trained for this is accepted most often there.

    At temperature 0 a draft learns from the distributions at temperature 1, which hold more than their likeliest token.
    """

    temperature: float = setting(1.0, "The temperature of use of the target; 0 is greedy decoding.", least=0.0)
    top_k: int = setting(0, "The top-k of that use; 0 is off.", least=0)
    top_p: float = setting(1.0, "The top-p of that use; 1 is off.", above=0.0, most=1.0)

    def __post_init__(self):
        check_ranges(self)

    @property
    def cuts(self) -> bool:
        """Some tokens get no probability at all."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def generate_kwargs(self) -> dict:
        """Keywords of `generate`."""
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    def of_target(self, logits: "Tensor") -> "Tensor":
        """Log-probabilities of the target's `logits (n, vocab)`, float32; -inf for what is cut off."""
        from transformers import TopKLogitsWarper, TopPLogitsWarper

        from ..sampling.likeliest import top_p

        scores = logits.float() / (self.temperature or 1.0)  # in the order in which transformers' `generate` has these
        if self.top_k > 0:
            scores = TopKLogitsWarper(self.top_k)(None, scores)  # type: ignore[arg-type]  # it does not read the text
        if self.top_p < 1:
            scores = top_p(TopPLogitsWarper(self.top_p), scores)  # sorting would take most of a step
        return scores.log_softmax(-1)

    def of_draft(self, logits: "Tensor") -> "Tensor":
        """The same of the draft's, cut off nowhere: a token without probability has no gradient that would bring it back."""
        return (logits.float() / (self.temperature or 1.0)).log_softmax(-1)
