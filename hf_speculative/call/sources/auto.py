"""All that needs no draft model, each node by its chance: `method="auto"`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ...interfaces import Drafter
from ..source import PreparedCall, Source
from .mtp import MtpSource
from .recycling import recycling_of
from .texts import TextSource


@dataclass(frozen=True, eq=False)
class AutoSource(TextSource):
    """The model's own MTP layers where its checkpoint has some, else recycling and copies together."""

    method = "auto"

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[str, ...]:
        return (cls.method,)

    def for_model(self, model: PreTrainedModel) -> Source:
        mtp = MtpSource(True)
        try:
            mtp.check(model)
        except ValueError:  # most models have none
            return self
        return mtp

    def drafter(self, call: PreparedCall) -> Drafter:
        return self.tree_drafter(call.model, [recycling_of(call.model), *self.copies(call.model)])
