"""Combine guesses that cost no pass with drafts of a model: in each round, whichever promises more."""

from collections.abc import Hashable

from transformers import PreTrainedModel

from ..forwarding import Handed, forwards_to, to_each
from ..interfaces import CachedModel, Drafter, Sampler, Schedule
from ..schedules.best_nodes import HybridSchedule
from ..types import Batch, Draft
from .source import BuildContext, DraftSource
from .texts import GuessingSource
from .tree_drafter import TreeDrafter
from .wrapped import WrappedDrafter


class HybridDrafter(WrappedDrafter):
    """Propose `guesses` in rounds in which they promise more than a draft, else drafts of `drafter`.

    The choice depends on the guesses' probabilities and on earlier rounds, before anything is drawn. A drafter of trees may
    add guesses to its tree (`Drafter.propose_beside`).
    """

    prefill, observe, rollback, learn, select, admit = (
        to_each("both", name) for name in ("prefill", "observe", "rollback", "learn", "select", "admit")
    )
    may_branch = Handed("guesses", "may_branch")  # type: ignore[assignment]

    def __init__(self, guesses: TreeDrafter, drafter: Drafter):
        super().__init__(drafter)
        self.guesses, self.both = guesses, (drafter, guesses)
        self.one_hot_proposals, self.branches = False, True

    def branches_with(self, sampler: Sampler) -> bool:
        return self.guesses.branches_with(sampler)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.drafter.may_branch = self.may_branch and self.drafter.branches_with(sampler)
        self.drafter.begin(batch, sampler)
        self.guesses.begin(batch, sampler)

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        (guessing, num_guesses), (drafting, num_drafted) = schedule.parts(num_tokens)
        draft = self.guesses.propose(batch, num_guesses, guessing, sampler) if any(num_guesses) else Draft.empty(batch)
        if draft.width or not any(num_drafted):
            return draft
        if not self.drafter.may_branch:
            num_drafted = [min(n, room) for n, room in zip(num_drafted, batch.rooms, strict=True)]
        return self.drafter.propose_beside(
            batch, num_drafted, drafting, sampler, lambda num_nodes: self.guesses.grow(batch, num_nodes)
        )


@forwards_to("paid")
class HybridSource(DraftSource):
    """Drafts of `paid` and, where they promise more, of `guesses`. Its attributes are those of `paid`."""

    method = "draft_model with guesses"

    def __init__(self, guesses: GuessingSource, paid: DraftSource):
        self.guesses, self.paid = guesses, paid
        self.parts = guesses, paid

    def options(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.paid.options(), *self.guesses.options())

    @property
    def label(self) -> str:
        return f"{self.paid.label} and {self.guesses.label}"

    @property
    def cost_key(self) -> Hashable:
        return self.paid.cost_key, self.guesses.cost_key

    def for_model(self, model: PreTrainedModel) -> DraftSource:
        return HybridSource(self.guesses, self.paid.for_model(model))

    check = to_each("parts", "check")

    def around(self, schedule: Schedule, max_tokens: int, is_default: bool) -> Schedule:
        return HybridSchedule(schedule, self.guesses.most_tokens if is_default else max_tokens)

    def build(self, call: BuildContext) -> tuple[CachedModel | None, Drafter]:
        target, drafter = self.paid.build(call)
        return target, HybridDrafter(self.guesses.drafter(call), drafter)
