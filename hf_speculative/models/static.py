"""Ragged passes of static shape, which can be captured once and replayed.

Everything that changes from pass to pass comes in tensors of one shape: the ids, where each row's columns go, what each row has
seen. Attention looks at a number of slots from a short ladder, not at exactly those in use. So a few kinds of pass, by rows,
columns and slots, serve a whole generation; what a round accepted changes no shape.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..types import Batch, uploaded
from .artifacts import CompiledPass
from .cached_model import num_logits
from .masks import no_nodes
from .ragged import RaggedModel
from .replays import Capture, Replays, ladder, padded, rounded_up
from .traced import MAX_COLUMNS, NUM_PLACES, ragged_pass


class StaticModel(RaggedModel):
    """A ragged model whose passes, the prompt's apart, have static shapes.

    Args:
        capture: how to capture one, see `Capture`; `None` to call it.
    """

    #: capacity, last position and offsets that bounds and slots were made for
    made_for: tuple | None = None

    def __init__(self, model: PreTrainedModel, clamp_ids: bool = False, capture: Capture | None = None):
        self.capture = capture
        super().__init__(model, clamp_ids)

    def reset(self) -> None:
        super().reset()
        #: the slots that each pass looks at; 0: no more than it needs
        self.all_slots = 0
        self.replays = Replays(self.original, self.capture)

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        ends, widths = self._begin(batch, ahead)
        if not self._is_static(batch, max(widths), ahead):
            return super().logits(batch, ahead, num_last)
        width = self._width(widths, batch, ahead)
        inputs = self._tensors(batch, ahead, width, max(ends))
        self.cache.recurrence.begin(self.host_seen, [width - own for own in widths], width, ahead)
        kind = self._keeps_last(num_last), self.recorded
        logits = self.replays(self.cache, self._one_pass(inputs, num_last), inputs, kind)
        self._finish(ends, batch.lengths - batch.padding + ahead)
        return logits[:, -num_last:].to(batch.tokens.device)

    def drafts_at_once(self, batch: Batch) -> bool:
        if self.capture is None or batch.tokens.device != self.device:  # a capture is of one device, tokens included
            return False
        return self._is_static(batch, max(self._begin(batch, ahead=0)[1]))

    def draft(self, batch: Batch, num_tokens: int, draw, settings: Hashable) -> tuple[Tensor, Tensor | None]:
        ends, widths = self._begin(batch, ahead=0)
        width, ahead = self._width(widths, batch, ahead=0), num_tokens - 1  # the last one is not fed
        inputs = self._tensors(batch, 0, width, max(ends) + num_tokens)
        self.cache.recurrence.begin(self.host_seen, [width - own for own in widths], width + ahead, ahead)
        one_pass = self._one_pass(inputs, num_last=1)

        def draft_all(input_ids: Tensor, first: Tensor, seen: Tensor, *others: Tensor):
            drawn = []
            for ahead in range(num_tokens):
                drawn.append(draw(one_pass(input_ids, first, seen, *others)[:, -1], ahead))
                first = seen = first + input_ids.shape[1]
                input_ids = self.readable(drawn[-1][0][:, None]).to(self.device)
            tokens, distributions = zip(*drawn, strict=True)
            return torch.stack(tokens, 1), None if distributions[0] is None else torch.stack(distributions, 1)

        drafted = self.replays(self.cache, draft_all, inputs, ("draft", num_tokens, settings, self.recorded))
        self._finish([end + ahead for end in ends], batch.lengths - batch.padding + ahead, num_tokens)
        return drafted

    def lay_out(self, rows: Batch, num_slots: int) -> None:
        """Begin with `rows`, of which nothing is read, in a cache of which all passes look at as many slots."""
        self.all_slots = num_slots
        self._start(rows, ahead=0)
        self.cache.reserve(len(rows.rows), num_slots, limit=num_slots)

    def fresh(self):
        fresh = super().fresh()
        fresh.capture = fresh.replays.capture = None  # not worth it for a cache that is let go
        return fresh

    def num_slots(self, end: int) -> int:
        """The slots that a pass up to slot `end` looks at."""
        return self.all_slots or ladder(end)

    def _width(self, widths: list[int], batch: Batch, ahead: int) -> int:
        """The columns of a pass: where it is captured, of few different numbers, as far as the shortest text has them."""
        width = max(widths)
        if self.capture is None or self.all_slots:
            return width
        num_nodes = 0 if batch.tree is None else max(ahead, 0)
        wanted = rounded_up(num_nodes) + width - num_nodes if num_nodes else rounded_up(width)
        return max(width, min(wanted, min(batch.host_lengths) + ahead))

    def _is_static(self, batch: Batch, width: int, ahead: int = 0) -> bool:
        if self.all_slots:
            return True
        if width > MAX_COLUMNS or 0 in self.host_seen or self._has_odd_positions(batch):
            return False
        recurrence = self.cache.recurrence
        return recurrence.num_states == 1 and recurrence.keeps_each(rounded_up(width), ahead)

    def _tensors(self, batch: Batch, ahead: int, width: int, end: int) -> tuple[Tensor, ...]:
        """What `ragged_pass` takes, for a pass of `width` columns up to `ahead`, with room for slots `[0, end)`."""
        assert self.seen is not None
        num_slots = self.num_slots(end)
        self.cache.reserve(len(batch.rows), num_slots, limit=self.num_slots(batch.max_length + ahead))
        self.cache.start = self.cache.lowest = 0  # windows, too, look at all slots: what a mask hides changes no shape
        bounds, slots = self._bounds_and_slots(self.cache.capacity, batch.max_position)
        is_tree = batch.tree is not None and ahead > 0
        nodes = self._nodes(batch, ahead) if is_tree else no_nodes(len(batch.rows), num_slots, self.device)
        if is_tree and self.capture is not None:  # nodes that nothing follows
            nodes = padded(nodes)
        ids, first = self._input_ids(batch, ahead, width), batch.lengths - batch.padding + (ahead - width)
        return ids, first.to(self.device), self.seen.to(self.device), bounds, slots[:num_slots], *nodes

    def _has_odd_positions(self, batch: Batch) -> bool:
        """Whether a text stands between whole positions, as behind some videos, or may go on past the model's tables."""
        most = self.layers.columns.most_positions
        return any(offset % 1 for offset in self.offsets) or (most is not None and batch.max_length > most)

    def _bounds_and_slots(self, capacity: int, max_position: int) -> tuple[Tensor, Tensor]:
        """The `bounds` of `ragged_pass`, and all slots: made once, not in each draft step."""
        made_for = capacity, max_position, tuple(self.offsets)
        if self.made_for != made_for:
            bounds = uploaded([[capacity - 1, max_position, int(offset)] for offset in self.offsets], self.device)
            self.made_for, self.made = made_for, (bounds, torch.arange(capacity, device=self.device))
        return self.made

    def _keeps_last(self, num_last: int) -> bool:
        """Whether the model computes logits of the last column alone, else of all."""
        return num_last == 1 and self.layers.keeps_logits

    def _one_pass(self, inputs: tuple[Tensor, ...], num_last: int) -> Callable[..., Tensor]:
        """A pass as a function of its tensors alone; it gives at least the last `num_last` columns' logits."""
        keep: dict[str, Any] = {"logits_to_keep": 1} if self._keeps_last(num_last) else {}

        def one_pass(*tensors: Tensor) -> Tensor:
            encoded = self.layers.encoded(tensors[0].shape[1], *tensors[NUM_PLACES:])
            return ragged_pass(self.run, self.cache, self.layers, tensors[:NUM_PLACES], **keep, **encoded).logits

        return one_pass


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
