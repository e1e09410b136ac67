"""Ragged passes that run from a file, see `exported`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..types import Batch
from .artifacts import CompiledPass
from .cached_model import num_logits
from .static import StaticModel
from .traced import MAX_COLUMNS


class AheadModel(StaticModel):
    """A ragged model whose passes run from a file that was compiled ahead of time, short prompts included; see `exported`.

    Args:
        one_pass: the file's, on the weights of `model`.
    """

    def __init__(self, model: PreTrainedModel, clamp_ids: bool, one_pass: CompiledPass):
        self.one_pass = one_pass
        super().__init__(model, clamp_ids)

    def _is_static(self, batch: Batch, width: int, ahead: int = 0) -> bool:
        return width <= MAX_COLUMNS and not self._has_odd_positions(batch) and self.cache.recurrence.keeps_each(width, ahead)

    def num_slots(self, end: int) -> int:
        return self.all_slots or end

    def _one_pass(self, inputs: tuple[Tensor, ...], num_last: int) -> Callable[..., Tensor]:
        cached = next(self._cached(inputs, [inputs[0].shape[1]]))

        def one_pass(*tensors: Tensor) -> Tensor:
            width, slots = tensors[0].shape[1], tensors[4]
            columns = slots[max(0, width - num_last) : width]
            return self.one_pass([*(t.contiguous() for t in tensors), columns, *cached])[0]

        return one_pass

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        ends, widths = self._begin(batch, ahead=0)
        width, ahead = max(widths), num_tokens - 1  # the last one is not fed
        if not self._is_static(batch, width) or num_logits(self.original) > vocab_size:
            return None
        inputs = self._tensors(batch, 0, width, max(ends) + ahead)
        self.cache.recurrence.begin(self.host_seen, [width - own for own in widths], width + ahead, ahead)
        drawn: list[Tensor] = []
        tokens, first, seen, bounds, slots, *nodes = (tensor.contiguous() for tensor in inputs)
        for cached in self._cached(inputs, [width] + [1] * ahead):
            width = tokens.shape[1]
            found = self.one_pass([tokens, first, seen, bounds, slots, *nodes, slots[width - 1 : width], *cached])
            first = seen = first + width
            drawn.append(found[1])
            tokens = self.readable(drawn[-1])
        self._finish([end + ahead for end in ends], batch.lengths - batch.padding + ahead, num_tokens)
        return torch.cat(drawn, 1)

    def _cached(self, inputs: tuple[Tensor, ...], widths: list[int]) -> Iterator[list[Tensor]]:
        """Yield the tensors of all layers' `Layout`, for a pass of each of these widths, one after the other."""
        like = len(inputs[0]), self.one_pass.layouts, self.dtype, self.device
        for width in widths:
            cached = self.cache.tensors(*like, width)
            assert all(part.is_contiguous() for part in cached), "compiled for strides that follow from sizes"
            yield cached
