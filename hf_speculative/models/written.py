"""What the columns of a compiled pass write to a recurrent state, by which the next pass goes on.

A state is a hundred times as large as what a column adds to it. So a pass leaves no state after each column: the next one reads
the state before this one, and of the columns those that were accepted. For products, this is a chunk of Yang et al. 2024 (arXiv
2412.06464), section 3.3.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..hf_compat import LinearAttentionLayer
from ..types import uploaded

#: of a state: the place of its layer, its kind and its index
Key = tuple[int, str, int]


def states_of(layer: LinearAttentionLayer) -> list[tuple[str, dict[int, Tensor | None]]]:
    return [("conv", layer.conv_states), ("recurrent", layer.recurrent_states)]


def held_by(layer: LinearAttentionLayer) -> list[tuple[str, int, Tensor]]:
    """Kind and index of each state that is there, and the state."""
    return [(kind, index, state) for kind, states in states_of(layer) for index, state in states.items() if state is not None]


def after_products(state: Tensor, writes: Tensor, are_read: Tensor) -> Tensor:
    """The state of a recurrence after some columns, each of which decays it and adds a product.

    Args:
        state: `(batch, heads, dim, width)` before them.
        writes: `(batch, columns, heads, 2 * dim + width)`: logarithms of decays, and the two factors.
        are_read: `(batch, columns)` bool, which columns.
    """
    sizes = [state.shape[2], state.shape[2], state.shape[3]]
    logs, left, right = writes.transpose(1, 2).split(sizes, -1)
    unread = ~are_read[:, None, :, None]
    logs = logs.masked_fill(unread, 0)
    since = logs.flip(2).cumsum(2).flip(2)  # of logarithms, from each column on
    behind = functional.pad(since[:, :, 1:], (0, 0, 0, 1))
    left = (left * behind.exp()).masked_fill(unread, 0)
    decayed = state.float() * since[:, :, :1].exp().transpose(2, 3)
    return (decayed + left.transpose(2, 3) @ right).to(state.dtype)


def after_inputs(state: Tensor, writes: Tensor, places: Tensor) -> Tensor:
    """The state of a convolution after some columns: its last inputs.

    Args:
        state: `(batch, size, channels)` before them.
        writes: `(batch, columns, channels)`, the inputs of the columns.
        places: `(batch, size)`, which of both.
    """
    rows = torch.arange(places.shape[0], device=places.device)[:, None]
    return torch.cat([state, writes], 1)[rows, places]


@dataclass(frozen=True)
class StateLayout:
    """The tensors in which a compiled pass finds a state.

    These are the arguments of `after_products` or `after_inputs`, where the state goes that they give, and what the columns of
    the pass write. Where columns add neither, they are the state before the pass `(batch, ...)`, and where the state after each
    column goes, `(columns, batch, ...)`.

    Attributes:
        kind, index: in a layer.
        shape: of the state, as the layer has it, without rows.
        dtype: of the state.
        adds_products: in each column.
    """

    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    adds_products: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the state after each column is given."""
        return self.kind == "recurrent" and not self.adds_products

    @property
    def num_tensors(self) -> int:
        return 2 if self.is_whole else 5

    def sizes(self, num_rows: int, num_columns: int, num_before: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes of the tensors, after a pass of `num_before` columns."""
        if self.is_whole:
            return [((num_rows, *self.shape), self.dtype), ((num_columns, num_rows, *self.shape), self.dtype)]
        if self.adds_products:
            shape, dtype, which = self.shape, torch.float, ((num_rows, num_before), torch.bool)
            written = (self.shape[0], 2 * self.shape[1] + self.shape[2])
        else:
            shape, dtype, which = self.shape[::-1], self.dtype, ((num_rows, self.shape[1]), torch.long)
            written = self.shape[:1]  # type: ignore[assignment]
        state = (num_rows, *shape), self.dtype
        before, new = (((num_rows, num, *written), dtype) for num in (num_before, num_columns))
        return [state, before, which, state, new]

    def after(self, state: Tensor, *others: Tensor) -> Tensor:
        """The state that is given by the first of the tensors, in the form of those."""
        return (after_products if self.adds_products else after_inputs)(state, *others)

    def turned(self, state: Tensor) -> Tensor:
        """From the form of the tensors to that of the layer, and back."""
        return state if self.kind == "recurrent" else state.transpose(1, 2)

    def unwritten(self, state: Tensor) -> list[Tensor]:
        """The arguments of `after` that give `state`, in the form of the layer."""
        _, (shape, dtype), *_ = self.sizes(len(state), num_columns=0, num_before=1)
        which = state.new_zeros(len(state), 1, dtype=torch.bool)
        if not self.adds_products:
            which = torch.arange(self.shape[1], device=state.device).repeat(len(state), 1)
        return [self.turned(state).contiguous(), state.new_zeros(shape, dtype=dtype), which]


class Written:
    """A compiled pass over several columns.

    Args:
        num_columns: in all.

    Attributes:
        layouts: of the states.
        before: the states that its columns go on from.
        writes: what they write to each.
    """

    def __init__(self, num_columns: int):
        self.num_columns = num_columns
        self.layouts: dict[Key, StateLayout] = {}
        self.before: dict[Key, Tensor] = {}
        self.writes: dict[Key, Tensor] = {}

    def go_on(self, place: int, layout: StateLayout, columns: dict[Key, list[Any]], new: list["Later"]) -> list[Tensor]:
        """Make the tensors of a state of layer `place`, for a pass that goes on from the last of its `columns`.

        Args:
            columns: of all states. They get those of the pass.
            new: these, where the pass does not give the states themselves.
        """
        key = place, layout.kind, layout.index
        last = columns[key].pop()
        if layout.is_whole:
            last = last.contiguous()
            after = last.new_empty(self.num_columns, *last.shape)
            columns[key] += [last, *after]
            return [last, after]
        given = last.parts(key) if isinstance(last, Later) else layout.unwritten(last)
        before = torch.empty_like(given[0])
        writes = given[1].new_empty(len(before), self.num_columns, *given[1].shape[2:])
        self.layouts[key], self.before[key], self.writes[key] = layout, before, writes
        columns[key] += [layout.turned(before), *new]
        return [*given, before, writes]


class Later:
    """The states after columns of a compiled pass, which are computed by the next one, or where they are asked for.

    Args:
        written: the pass.
        read: the columns that each row has read, in order.
    """

    def __init__(self, written: Written, read: list[Sequence[int]]):
        self.written, self.read = written, read
        self.places: dict[int, Tensor] = {}

    @functools.cached_property
    def are_read(self) -> Tensor:
        """The argument of `after_products`."""
        columns = range(self.written.num_columns)
        return uploaded([[column in read for column in columns] for read in self.read], self.device, torch.bool)

    def places_of(self, size: int) -> Tensor:
        """The argument of `after_inputs`."""
        if size not in self.places:
            places = [[*range(size), *(size + column for column in read)][-size:] for read in self.read]
            self.places[size] = uploaded(places, self.device, torch.long)
        return self.places[size]

    @property
    def device(self) -> torch.device:
        return next(iter(self.written.before.values())).device

    def parts(self, key: Key) -> list[Tensor]:
        """The arguments of `StateLayout.after`."""
        layout, before = self.written.layouts[key], self.written.before[key]
        return [before, self.written.writes[key], self.are_read if layout.adds_products else self.places_of(before.shape[1])]

    def state(self, key: Key) -> Tensor:
        """In the form of the layer."""
        layout = self.written.layouts[key]
        return layout.turned(layout.after(*self.parts(key)))


class Picked:
    """The states of rows that go on from different columns.

    Args:
        skipped: of each row, columns of the last pass that it leaves out: other branches of a tree.
    """

    def __init__(self, skipped: Sequence[set[int]]):
        self.skipped = skipped
        self.laters: dict[int, Later] = {}

    def __call__(self, key: Key, wanted: list[Tensor | Later]) -> Tensor | Later:
        """Row i's from `wanted[i]`."""
        wanted = [self._of_pass(one.written, wanted) if isinstance(one, Later) else one for one in wanted]
        held = {id(one): one for one in wanted}
        if len(held) == 1:
            return wanted[0]
        states = {name: one.state(key) if isinstance(one, Later) else one for name, one in held.items()}
        return torch.stack([states[id(one)][row] for row, one in enumerate(wanted)])

    def _of_pass(self, written: Written, wanted: list[Tensor | Later]) -> Later:
        """One for all layers: what rows have read is uploaded once."""
        if id(written) not in self.laters:
            of_it = [
                one.read[row] if isinstance(one, Later) and one.written is written else () for row, one in enumerate(wanted)
            ]
            pairs = zip(of_it, self.skipped, strict=True)
            self.laters[id(written)] = Later(written, [[one for one in read if one not in skipped] for read, skipped in pairs])
        return self.laters[id(written)]
