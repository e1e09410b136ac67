"""Several ways to guess in one call: `draft_model=["suffix", "ngram"]`."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from ..names import AND
from .proposers import Proposer
from .texts import GuessingSource


class SeveralSource(GuessingSource):
    """All that its `sources` guess, each guess by its chance."""

    def __init__(self, sources: Sequence[GuessingSource]):
        self.sources = tuple(sources)
        self.method = AND.join(source.method for source in sources)  # type: ignore[misc]

    def options(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for source in self.sources for name in source.options()))

    def check(self, model: PreTrainedModel) -> None:
        for source in self.sources:
            source.check(model)

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [proposer for source in self.sources for proposer in source.proposers(model)]
