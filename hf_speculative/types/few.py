"""Scores and probabilities of the few tokens of a vocabulary that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Few:
    """Numbers of few tokens, in the place of a tensor over the vocabulary.

    Attributes:
        values: `(..., n + 1)`, of `ids`, and a last one that stands for all other tokens: -inf as a score, 0 as a probability.
        ids: `(n,)` int64, in order.
        vocab_size: of the whole.
    """

    values: Tensor
    ids: Tensor
    vocab_size: int

    def __getitem__(self, index) -> Few:
        """Some of the positions."""
        return replace(self, values=self.values[index])

    def places(self, tokens: Tensor) -> Tensor:
        """Where the values of `tokens` are."""
        places = torch.searchsorted(self.ids, tokens.contiguous())
        is_among = functional.pad(self.ids, (0, 1), value=-1)[places] == tokens
        return places.where(is_among, len(self.ids))


def dense(found: Tensor | Few) -> Tensor:
    """The same over the whole vocabulary: `(..., vocab)`."""
    if isinstance(found, Tensor):
        return found
    values = found.values
    whole = values[..., -1:].expand(*values.shape[:-1], found.vocab_size).clone()
    return whole.index_copy_(-1, found.ids, values[..., :-1])
