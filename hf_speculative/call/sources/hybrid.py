"""A draft model and guesses that need none, in one call: `draft_model=` beside `method=`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from transformers import PreTrainedModel

from ...drafting.hybrid import HybridDrafter
from ...interfaces import CachedModel, Drafter, Schedule
from ...schedules.hybrid import HybridSchedule
from ...tokenizers.vocabulary import VocabularyMatch
from ..source import BuildContext, DraftSource
from .texts import GuessingSource


class HybridSource(DraftSource):
    """What `paid` drafts and, where they promise more, what `guesses` does. What is asked of a source, `paid` answers."""

    argument, method = "draft_model", "draft_model with guesses"

    def __init__(self, guesses: GuessingSource, paid: DraftSource):
        self.guesses, self.paid = guesses, paid
        self.parts = guesses, paid
        self.draft_model, self.num_draft_tokens = paid.draft_model, paid.num_draft_tokens
        self.runs_target, self.most_tokens = paid.runs_target, paid.most_tokens  # type: ignore[misc]
        self.reads_states, self.needs_ragged = paid.reads_states, paid.needs_ragged  # type: ignore[misc]
        self.timed_lengths = paid.timed_lengths  # type: ignore[misc]

    def options(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.paid.options(), *self.guesses.options())

    @property
    def name(self) -> str:
        return self.paid.name

    @property
    def label(self) -> str:
        return f"{self.paid.label} and {self.guesses.label}"

    @property
    def counts_nodes(self) -> bool:
        return self.paid.counts_nodes

    @property
    def timed_trees(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        return self.paid.timed_trees

    @property
    def cost_key(self) -> Hashable:
        return self.paid.cost_key

    def check(self, model: PreTrainedModel) -> None:
        self.paid.check(model)
        self.guesses.check(model)

    def check_ids(self, model: PreTrainedModel) -> None:
        self.paid.check_ids(model)

    def vocabulary(self, model: PreTrainedModel, do_sample: bool) -> VocabularyMatch | None:
        return self.paid.vocabulary(model, do_sample)

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.paid.max_draft_tokens(model)

    def cost_of_token(self, model: PreTrainedModel) -> float:
        return self.paid.cost_of_token(model)

    def costs_end_with(self, model: PreTrainedModel) -> object:
        return self.paid.costs_end_with(model)

    def adaptive_schedule(self, max_tokens: int, is_default: bool) -> Schedule:
        return self.paid.adaptive_schedule(max_tokens, is_default)

    def around(self, schedule: Schedule, max_tokens: int, is_default: bool) -> Schedule:
        return HybridSchedule(schedule, self.guesses.most_tokens if is_default else max_tokens)

    def build(self, call: BuildContext) -> tuple[CachedModel | None, Drafter]:
        target, drafter = self.paid.build(call)
        return target, HybridDrafter(self.guesses.drafter(call), drafter)
