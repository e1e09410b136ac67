"""Keep the cache of the texts that ended last while no request runs, for prompts that continue one of them."""

from torch import nn

from ..hf_compat import ACTIVE_ADAPTER, DISABLE_ADAPTERS, version_of
from ..interfaces import CachedModel
from ..types import Prefix
from .rows import Rows


class Parked:
    """A copy of the target's cache of the last rows, such as the turns of a conversation so far.

    Args:
        batch: the finished rows; the target has read all but their newest tokens.
    """

    def __init__(self, batch: Rows, target: CachedModel, model: nn.Module):
        self.weights = weights_of(model)
        self.texts = batch.texts
        rows = batch.part(range(len(self.texts)))
        rows.prefixes = [Prefix(lane, max(0, len(text) - 1)) for lane, text in enumerate(self.texts)]
        self.target = target.fresh()
        self.target.share(target, rows)

    def give(self, batch: Rows, target: CachedModel, model: nn.Module) -> None:
        """Let unread rows of `batch` begin with the prefix that they share with a parked row."""
        if weights_of(model) == self.weights:
            batch.share_prefixes(self.texts)
            target.share(self.target, batch)


def weights_of(model: nn.Module) -> tuple:
    """A value that changes when a weight does: addresses, versions, and active PEFT adapters."""
    written = [(p.data_ptr(), version_of(p)) for p in model.parameters()]
    layers = [vars(module) for module in model.modules() if ACTIVE_ADAPTER in vars(module)]
    return written, [(str(layer[ACTIVE_ADAPTER]), layer.get(DISABLE_ADAPTERS)) for layer in layers]
