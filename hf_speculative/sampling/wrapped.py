"""A sampler around another one."""

from ..forwarding import forwards_to
from ..interfaces import Sampler


@forwards_to("sampler")
class WrappedSampler(Sampler):
    """A sampler around another one: what a subclass leaves alone is the other's."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.vocab_size = sampler, sampler.vocab_size
