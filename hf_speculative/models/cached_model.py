"""What the loop asks of a model with its cache."""

from __future__ import annotations

from contextlib import contextmanager

from torch import Tensor, nn

from ..types import Batch


class CachedModel:
    """A model that feeds what it has not seen.

    Its cache covers the first `seen[b]` tokens of each row; a pass feeds everything from there on. So a draft that was
    accepted whole, whose last token the draft model has never read, is no special case.

    Attributes:
        num_forwards: passes so far.
    """

    num_forwards: int = 0

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        """Feed each row's unseen tokens up to `ahead` beyond its length; logits `(batch, num_last, vocab)` of the last."""
        raise NotImplementedError

    def rollback(self, batch: Batch) -> None:
        """Forget all but the tokens of `batch`, the newest of which has not been fed."""
        raise NotImplementedError

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget everything: another batch begins."""
        raise NotImplementedError

    def prefill(self, batch: Batch) -> None:
        """Feed all tokens of `batch`, for nothing but the cache."""
        self.logits(batch, ahead=0, num_last=1)
        self.rollback(batch)

    def hidden_states(self, positions: Tensor) -> Tensor:
        """States `(batch, n, layers * hidden)` of the tokens at `positions (batch, n)`, a row's first token at 0.

        Of the layers that the drafter named (`Drafter.hidden_layers`), for tokens that a pass has read: all accepted ones
        but a row's newest. What stands at other positions is filler.
        """
        raise NotImplementedError

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer has cached, each `(batch, heads, capacity, dim)`: a row's token t stands in slot t."""
        raise NotImplementedError

    def load(self, cache, batch: Batch) -> None:
        """Start from transformers' own `cache`, filled with the first columns of `batch`."""
        raise NotImplementedError

    def store(self, cache, num_columns: int, padding: int):
        """Write a single row's first `num_columns`, left padding included, into transformers' own `cache`; returns it."""
        raise NotImplementedError


@contextmanager
def without_dropout(model: nn.Module | None):
    """Evaluation mode for a while; afterwards each module is in the mode it was in, mixed ones included."""
    training = [module for module in model.modules() if module.training] if model is not None else []
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
