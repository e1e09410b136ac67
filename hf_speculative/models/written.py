"""What the columns of a compiled pass write to a recurrent state: outer products, by which the next pass goes on.

A state is a hundred times as large as what a column writes. So a pass gives no state after each column; the next one reads the
state before this one, and the columns that were accepted. As the chunks of Yang et al. 2024 (arXiv 2412.06464), section 3.3.
"""

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from ..types import uploaded

#: of a state: the place of its layer, its kind and its index
Key = tuple[int, str, int]


@dataclass(frozen=True)
class StateLayout:
    """The tensors in which a compiled pass finds a state.

    These are the state before the pass `(batch, ...)`, and where the state after each column goes, `(columns, batch, ...)`. Of
    states to which columns add a product, they are the arguments of `after_columns`, where the state goes that these give, and
    what the columns of the pass write.

    Attributes:
        kind, index: in a layer.
        shape: without rows.
        dtype: of the state.
        adds_products: in each column.
    """

    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    adds_products: bool

    @property
    def num_tensors(self) -> int:
        return 5 if self.adds_products else 2

    def sizes(self, num_rows: int, num_columns: int, num_before: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes of the tensors, after a pass of `num_before` columns."""
        state, after = ((num_rows, *self.shape), self.dtype), ((num_columns, num_rows, *self.shape), self.dtype)
        if not self.adds_products:
            return [state, after]
        written = num_rows, self.shape[0], 2 * self.shape[1] + self.shape[2]
        before, new = ((num, *written) for num in (num_before, num_columns))
        return [state, (before, torch.float), ((num_rows, num_before), torch.bool), state, (new, torch.float)]

    def unwritten(self, state: Tensor) -> list[Tensor]:
        """The arguments of `after_columns` that give `state`."""
        _, *others = self.sizes(len(state), num_columns=0, num_before=1)[:3]
        return [state.contiguous(), *(state.new_zeros(shape, dtype=dtype) for shape, dtype in others)]


def after_columns(state: Tensor, writes: Tensor, are_read: Tensor) -> Tensor:
    """The state after some columns.

    Args:
        state: `(batch, heads, dim, width)` before them.
        writes: `(columns, batch, heads, 2 * dim + width)`: logarithms of decays, and the factors of the product that is added.
        are_read: `(batch, columns)` bool.
    """
    sizes = [state.shape[2], state.shape[2], state.shape[3]]
    logs, left, right = writes.movedim(0, 2).split(sizes, -1)
    unread = ~are_read[:, None, :, None]
    logs = logs.masked_fill(unread, 0)
    since = logs.flip(2).cumsum(2).flip(2)  # of logarithms, from each column on
    behind = functional.pad(since[:, :, 1:], (0, 0, 0, 1))
    left = (left * behind.exp()).masked_fill(unread, 0)
    decayed = state.float() * since[:, :, :1].exp().transpose(2, 3)
    return (decayed + left.transpose(2, 3) @ right).to(state.dtype)


@dataclass
class Written:
    """A compiled pass over several columns.

    Attributes:
        num_columns: in all.
        before: the states that its columns go on from.
        writes: what they write to each.
    """

    num_columns: int
    before: dict[Key, Tensor] = field(default_factory=dict)
    writes: dict[Key, Tensor] = field(default_factory=dict)


class Later:
    """The states after columns of a compiled pass, which are computed by the next one, or where they are asked for.

    Args:
        written: the pass.
        lasts: the last column that each row goes on from.
        skipped: columns before it that each row leaves out: of other branches of a tree.
    """

    def __init__(self, written: Written, lasts: list[int], skipped: list[set[int]]):
        self.written, self.lasts, self.skipped = written, lasts, skipped

    @functools.cached_property
    def are_read(self) -> Tensor:
        """`(batch, columns)` bool."""
        columns, pairs = range(self.written.num_columns), zip(self.lasts, self.skipped, strict=True)
        rows = [[column <= last and column not in skipped for column in columns] for last, skipped in pairs]
        return uploaded(rows, next(iter(self.written.before.values())).device, torch.bool)

    def parts(self, key: Key) -> list[Tensor]:
        """The arguments of `after_columns`."""
        return [self.written.before[key], self.written.writes[key], self.are_read]

    def state(self, key: Key) -> Tensor:
        return after_columns(*self.parts(key))


class Picked:
    """The states of rows that go on from different columns.

    Args:
        skipped: as of `Later`, of the last pass; by default, as those that are picked from.
    """

    def __init__(self, skipped: list[set[int]] | None):
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
        """One for all layers: what rows leave out is uploaded once."""
        if id(written) not in self.laters:
            are_of_it = [one if isinstance(one, Later) and one.written is written else None for one in wanted]
            lasts = [-1 if one is None else one.lasts[row] for row, one in enumerate(are_of_it)]
            skipped = self.skipped or [set() if one is None else one.skipped[row] for row, one in enumerate(are_of_it)]
            self.laters[id(written)] = Later(written, lasts, skipped)
        return self.laters[id(written)]
