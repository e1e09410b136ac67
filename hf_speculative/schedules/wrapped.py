"""A schedule around another one."""

from ..forwarding import forwards_to
from ..interfaces import Schedule


@forwards_to("schedule", "learned")
class WrappedSchedule(Schedule):
    """A schedule around another one: what a subclass does not define is the other's."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
