"""A drafter around another one."""

from ..forwarding import forwards_to
from ..interfaces import Drafter


@forwards_to("drafter")
class WrappedDrafter(Drafter):
    """A drafter around another one: what a subclass does not define is the other's."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter

    @property
    def may_branch(self) -> bool:  # type: ignore[override]
        return self.drafter.may_branch

    @may_branch.setter
    def may_branch(self, may_branch: bool) -> None:
        self.drafter.may_branch = may_branch
