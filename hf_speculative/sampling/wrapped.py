"""A sampler around another one."""

from collections.abc import Hashable

from torch import Tensor

from ..interfaces import Sampler
from ..types import Batch, Tree


class WrappedSampler(Sampler):
    """A sampler around another one: what a subclass leaves alone is the other's."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.vocab_size = sampler, sampler.vocab_size
        self.one_hot_proposals, self.keeps_draft_probs = sampler.one_hot_proposals, sampler.keeps_draft_probs
        self.takes_trees, self.drafts_trees = sampler.takes_trees, sampler.drafts_trees
        self.measures_drafts = sampler.measures_drafts

    @property
    def settings(self) -> Hashable | None:
        return self.sampler.settings

    def begin_round(self, batch: Batch) -> None:
        self.sampler.begin_round(batch)

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        self.sampler.end_round(batch, tokens, chances)

    @property
    def proposes_argmax(self) -> bool:  # type: ignore[override]
        return self.sampler.proposes_argmax

    def num_allowed(self, tokens: Tensor) -> Tensor | None:
        return self.sampler.num_allowed(tokens)

    @property
    def proposes_likeliest(self) -> bool:  # type: ignore[override]
        return self.sampler.proposes_likeliest

    def finish(self, most_steps: int | None = None) -> None:
        self.sampler.finish(most_steps)

    def target_scores(self, batch: Batch, logits: Tensor) -> Tensor:
        return self.sampler.target_scores(batch, logits)

    def draft_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        return self.sampler.draft_scores(batch, logits, ahead)

    def level_scores(self, batch: Batch, logits: Tensor, first: int) -> Tensor:
        return self.sampler.level_scores(batch, logits, first)

    def probs(self, scores: Tensor) -> Tensor:
        return self.sampler.probs(scores)

    def target_probs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        return self.sampler.target_probs(scores)

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        return self.sampler.confidences(scores, ahead)

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        return self.sampler.propose(scores, ahead)

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        return self.sampler.categorical(probs, ahead, tree)

    def bernoulli(self, probability: Tensor) -> Tensor:
        return self.sampler.bernoulli(probability)
