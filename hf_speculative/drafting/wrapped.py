"""A drafter around another one."""

from ..forwarding import forwards_to
from ..interfaces import Drafter, Sampler, Schedule
from ..types import Batch, Draft


class Nothing(Drafter):
    one_hot_proposals = True

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        return Draft.empty(batch)


@forwards_to("drafter", "may_branch")
class WrappedDrafter(Drafter):
    """A drafter around another one: what a subclass does not define is the other's."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
