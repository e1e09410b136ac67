"""A drafter around another one."""

from ..forwarding import forwards_to
from ..interfaces import Drafter


@forwards_to("drafter", "may_branch")
class WrappedDrafter(Drafter):
    """A drafter around another one: what a subclass does not define is the other's."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
