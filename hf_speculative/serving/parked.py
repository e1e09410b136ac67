"""What stays cached while nothing runs: the texts that ended last, for a prompt that goes on from one of them."""

from torch import nn

from ..hf_compat import ACTIVE_ADAPTER, DISABLE_ADAPTERS, version_of
from ..interfaces import CachedModel
from ..models.packed_parameters import parameters_of
from ..types import Batch, Prefix
from .rows import Running, share_prefixes


class Parked:
    """A copy of what the target has cached of the last rows, such as the turns of a conversation so far.

    Args:
        batch: the rows, which are done; the target has read all of them but their newest tokens.
    """

    def __init__(self, batch: Batch, target: CachedModel, model: nn.Module):
        self.weights = weights_of(model)
        self.texts = [list(text) for text in batch.history]
        rows = batch.part(range(len(self.texts)))
        rows.prefixes = [Prefix(lane, len(text) - 1) for lane, text in enumerate(self.texts)]
        self.target = target.fresh()
        self.target.share(target, rows)

    def give(self, batch: Batch, requests: Running, target: CachedModel, model: nn.Module) -> None:
        """Rows of `batch`, of which nothing was read yet, begin with what they share with a parked one."""
        if weights_of(model) == self.weights:
            share_prefixes(self.texts, batch, requests)
            target.share(self.target, batch)


def weights_of(model: nn.Module) -> tuple:
    """Changes when a weight does: where each lies, how often it was written to, and which of PEFT's adapters are on."""
    written = [(p.data_ptr(), version_of(p)) for p in parameters_of(model)]
    layers = [vars(module) for module in model.modules() if ACTIVE_ADAPTER in vars(module)]
    return written, [(str(layer[ACTIVE_ADAPTER]), layer.get(DISABLE_ADAPTERS)) for layer in layers]
