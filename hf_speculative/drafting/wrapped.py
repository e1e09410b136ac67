"""A drafter around another one."""

from torch import Tensor

from ..interfaces import CachedModel, Drafter, Guesses, Sampler, Schedule
from ..types import Batch, Draft


class WrappedDrafter(Drafter):
    """A drafter around another one: methods that a subclass does not define are the other's."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.one_hot_proposals, self.hidden_layers = drafter.one_hot_proposals, drafter.hidden_layers
        self.branches = drafter.branches

    @property
    def may_branch(self) -> bool:
        return self.drafter.may_branch

    @may_branch.setter
    def may_branch(self, may_branch: bool) -> None:
        self.drafter.may_branch = may_branch

    def branches_with(self, sampler: Sampler) -> bool:
        return self.drafter.branches_with(sampler)

    @property
    def num_forwards(self) -> int:
        return self.drafter.num_forwards

    @property
    def keeps_rows_together(self) -> bool:
        return self.drafter.keeps_rows_together

    def follow(self, target: CachedModel) -> None:
        self.drafter.follow(target)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.drafter.begin(batch, sampler)

    def prefill(self, batch: Batch) -> None:
        self.drafter.prefill(batch)

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return self.drafter.propose(batch, num_tokens, schedule, sampler)

    def propose_beside(
        self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler, guesses: Guesses
    ) -> Draft:
        return self.drafter.propose_beside(batch, num_tokens, schedule, sampler, guesses)

    def observe(self, batch: Batch, draft: Draft, logits: Tensor) -> None:
        self.drafter.observe(batch, draft, logits)

    def rollback(self, batch: Batch) -> None:
        self.drafter.rollback(batch)

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        self.drafter.learn(prompt, answer)

    def release(self) -> None:
        self.drafter.release()

    def select(self, indices: list[int]) -> None:
        self.drafter.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        self.drafter.admit(newcomers, lanes)
