"""A schedule around another one."""

from ..forwarding import forwards_to
from ..interfaces import Schedule


@forwards_to("schedule")
class WrappedSchedule(Schedule):
    """A schedule around another one: what a subclass does not define is the other's."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule

    @property
    def learned(self) -> object:  # type: ignore[override]
        return self.schedule.learned

    @learned.setter
    def learned(self, learned: object) -> None:
        self.schedule.learned = learned
