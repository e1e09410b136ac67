"""All that needs no draft model, each node by its chance: `draft_model="auto"`."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from .mtp import MtpSource
from .proposers import Proposer
from .recycling import recycling_of
from .source import DraftSource
from .texts import TextSource


@dataclass(frozen=True, eq=False)
class AutoSource(TextSource):
    """The model's own MTP layers where its checkpoint has some, else recycling and copies together."""

    method = "auto"

    @classmethod
    def worth_trying(cls, model: PreTrainedModel) -> tuple[str, ...]:
        return (cls.method,)

    def for_model(self, model: PreTrainedModel) -> DraftSource:
        mtp = MtpSource(True)
        try:
            mtp.check(model)
        except ValueError:  # most models have none
            return self
        return mtp

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [recycling_of(model), *self.copies(model)]
