"""Recurrent and convolutional states of a ragged cache: those after each column since the last rollback are kept, so that each
row goes on from the one after its own last token.

A layer holds what transformers' `LinearAttentionLayer` does, and mixers read and write it as they do any cache. A single column
runs as in plain decoding, over copies. Several columns from a state are stepped (`stepped`). A prompt runs in one piece, and
leaves its last state.
"""

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..hf_compat import LinearAttentionLayer
from ..types import uploaded
from .steps import Branching, Steps, along, moved_right, parents_of, paths_of, unless
from .written import Key, Later, Picked, StateLayout, Written, held_by, states_of

#: columns beside those of a draft that are stepped; what is longer is read in one piece
NARROW = 16


class RecurrentLayer(LinearAttentionLayer):
    """States of one layer: those of a convolution are its last inputs, those of a recurrence what it has made of all.

    Attributes:
        of: gives its `recurrence`, which keeps states between passes and holds the layer.
        place: of this layer, among those with states.
        steps: the recurrence under way, if its columns are stepped.
        paths: of a pass over a tree, see `Recurrence.paths`.
    """

    is_croppable = True
    of: Callable[[], "Recurrence | None"]
    place: int
    steps: Steps | None = None
    paths: Tensor | None = None

    @property
    def recurrence(self) -> "Recurrence":
        return self.of()  # type: ignore[return-value]

    def begin_columns(self) -> None:
        """A pass begins: what its mixers find."""
        recurrence, self.windows, self.steps, self.paths = self.recurrence, {}, None, None  # type: ignore[var-annotated]
        for name, states in states_of(self):
            for index in states:
                key = self.place, name, index
                state = recurrence.last(key) if key in recurrence.columns else None
                # Fused kernels of single steps write in place.
                states[index] = state.clone() if state is not None and recurrence.width == 1 else state
        for index, state in self.conv_states.items():
            self.has_previous_state[index] = state is not None
        state = self.recurrent_states[0]
        if state is not None and recurrence.is_stepped and recurrence.width > 1:
            self.steps = Steps(state, recurrence.is_filler, recurrence.num_kept)
        if (ancestors := recurrence.ancestors) is not None:
            if state is not None:
                self.steps = Branching(state, recurrence.is_filler, parents_of(ancestors))
            windows = (conv for conv in self.conv_states.values() if conv is not None)
            self.paths = next((recurrence.paths(conv.shape[-1]) for conv in windows), None)

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs
    ) -> Tensor:
        """What a convolution reads for new inputs `(batch, channels, columns)`: they and, in front, those before them."""
        before = self.conv_states[state_idx]
        size = conv_kernel_size or (conv_states if before is None else before).shape[-1]
        if before is None:
            inputs = functional.pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        else:
            inputs = torch.cat([before, conv_states], -1)
            if self.paths is None and (is_filler := self.recurrence.is_filler) is not None:
                inputs = moved_right(inputs, size, is_filler.sum(1).to(inputs.device))
            self.windows[state_idx] = inputs
        self.conv_states[state_idx], self.has_previous_state[state_idx] = inputs[..., -size:], True
        return inputs

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def finish_columns(self) -> None:
        """The pass is over: keep the states that its mixers left.

        Raises:
            RuntimeError: a mixer has read several columns from a state in a way of its own.
        """
        recurrence = self.recurrence
        for name, index, state in held_by(self):
            key = self.place, name, index
            if not recurrence.is_stepped:
                recurrence.columns[key] = [state.clone()]  # a prompt's inputs are let go of
                continue
            columns = recurrence.columns[key]
            if recurrence.width > 1:
                new = self._after_each(name, index)
            else:
                is_filler = recurrence.is_filler
                new = [state if is_filler is None else unless(is_filler[:, 0], state, columns[-1])]
            recurrence.columns[key] = [*columns, *new][-recurrence.num_kept :]
        for _, states in states_of(self):
            states.update(dict.fromkeys(states))

    def _after_each(self, name: str, index: int) -> list[Tensor]:
        width = self.recurrence.width
        if name == "conv" and index in self.windows:
            inputs = self.windows[index]
            size = inputs.shape[-1] - width
            if self.paths is not None:
                return list(along(inputs, self.paths).movedim(1, 0))
            return [inputs[..., column : column + size] for column in range(1, width + 1)]
        if name == "conv" or index or self.steps is None or self.steps.num_columns != width:
            raise RuntimeError(f"state {index} of a layer ({name}) was not kept after each column")
        return self.steps.states


class Recurrence:
    """How far the rows of a ragged cache have read, as its recurrent layers need to know it; without any, nothing is noted.

    Attributes:
        columns: of each state, by its layer's place, kind and index: as it was at the last rollback and after each column
            since, each `(rows running, ...)`, or as `Later`.
        behind: of each state, that of the rows that are done, the last ones first.
        starts, ends: tokens that each row had read at the last rollback, and has read now.
        num_states: states that are kept: the last ones, a column each; columns of a row end in the last one.
        buffers: of each state, where captured passes read it, and write those after each column: `(room, ...)`.
        num_columns, is_stepped, has_filler, num_filler: of the pass under way, or of several in one graph: their columns,
            whether the state after each is kept, and whether some leave states as they are, as the first ones of rows do.
        width, is_filler: of the pass that a model runs: its columns, and which of them `(batch, width)` are filler, if any.
        ancestors: of a pass over a tree, as `Nodes.among` gives them.
        num_kept: the most states to keep after the pass.
    """

    has_filler = False
    num_filler: Sequence[int] = ()
    is_filler: Tensor | None = None
    ancestors: Tensor | None = None

    def __init__(self, layers: list[RecurrentLayer]):
        self.layers = layers
        self.buffers: dict[Key, Tensor] = {}
        for place, layer in enumerate(layers):
            layer.of, layer.place = weakref.ref(self), place
        self.clear()

    def reset(self, num_rows: int) -> None:
        """Begin with rows that have read nothing."""
        self.starts = self.ends = [0] * num_rows
        self.num_states = 1
        self.columns: dict[Key, list[Any]] = {}

    def last(self, key: Key) -> Tensor:
        """The state as it is now."""
        columns = self.columns[key]
        if isinstance(columns[-1], Later):
            columns[-1] = columns[-1].state(key)
        return columns[-1]

    def begin(self, seen: list[int], num_filler: list[int], width: int, ahead: int) -> None:
        """Begin a pass over `width` columns, the last `ahead` of them draft tokens; rows have read `seen` tokens.

        Args:
            num_filler: the first columns of each row, which leave its states as they are.
        """
        if not self.layers:
            return
        if not self.columns:
            self.reset(len(seen))
        has_filler = any(num_filler)
        if has_filler and self.num_states > 1:
            self.go_back(seen)  # states of a row would no longer follow each other column by column
        self.num_columns, self.has_filler, self.num_filler = width, has_filler, num_filler
        is_long = width > NARROW + max(ahead, 0)
        self.is_stepped = bool(self.columns) and not (is_long and ahead <= 0 and not has_filler)
        self.num_kept = max(ahead, 0) + 1 if is_long else self.num_states + width

    def enter(self, width: int, is_filler: Tensor | None, ancestors: Tensor | None = None) -> None:
        """A model begins to read `width` columns."""
        self.width, self.is_filler, self.ancestors = width, is_filler, ancestors
        self._paths: dict[int, Tensor] = {}
        for layer in self.layers:
            layer.begin_columns()

    def leave(self) -> None:
        """It has read them."""
        for layer in self.layers:
            layer.finish_columns()

    def paths(self, size: int) -> Tensor:
        """What `paths_of` gives, once a pass."""
        if size not in self._paths:
            assert self.ancestors is not None
            self._paths[size] = paths_of(self.ancestors, size)
        return self._paths[size]

    def keeps_each(self, width: int, ahead: int) -> bool:
        """Whether a pass over `width` columns can go on from a state, and keep the one after each column."""
        return not self.layers or (bool(self.columns) and width <= NARROW + max(ahead, 0))

    def in_buffers(self) -> tuple[dict[Key, Tensor], bool]:
        """Move the states to buffers, with room for those after each column of the pass: `(states + columns, rows, ...)`.

        Returns these, and whether other buffers were made for lack of room.
        """
        wanted, before = (self.num_states + self.num_columns, len(self.ends)), self.num_states
        room = next((len(buffer) for buffer in self.buffers.values()), 0)
        if grown := room < prod(wanted):  # at least twice as far, since captured passes hold addresses
            room = max(prod(wanted), 2 * room)
            like = {key: columns[0] for key, columns in self.columns.items()}
            self.buffers = {key: state.new_zeros(room, *state.shape[1:]) for key, state in like.items()}
        states = {key: self.buffers[key][: prod(wanted)].unflatten(0, wanted) for key in self.columns}
        kept = {key: held[-before:] for key, held in self.columns.items()}
        pairs = [pair for key, held in kept.items() for pair in zip(states[key][:before], held, strict=True)]
        if moved := [(goal, state) for goal, state in pairs if goal.data_ptr() != state.data_ptr()]:
            torch._foreach_copy_(*map(list, zip(*moved, strict=True)))
        return states, grown

    def over(self, states: dict[Key, Tensor], function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose passes read the first of `states`, see `in_buffers`, and leave theirs in the others."""

        def run(*tensors: Tensor) -> Any:
            self.columns = {key: [columns[0]] for key, columns in states.items()}
            output = function(*tensors)
            for key, columns in states.items():
                torch._foreach_copy_(list(columns[1:]), self.columns[key][1:])
            return output

        return run

    def compiled(self, layouts: Sequence[Sequence[StateLayout]], width: int) -> list[list[Tensor]]:
        """Go on from the states that a compiled pass leaves.

        Args:
            layouts: of each layer.
            width: of the pass.

        Returns:
            Of each layer the tensors of its states, see `StateLayout`.
        """
        written, num_filler, columns = Written(width), self.num_filler, self.columns
        self.num_filler = [0] * len(num_filler)  # of a further pass
        new = [Later(written, [range(num, column + 1) for num in num_filler]) for column in range(width)]
        layers = enumerate(layouts)
        return [[part for one in layout for part in written.go_on(place, one, columns, new)] for place, layout in layers]

    def keep(self, states: dict[Key, Tensor]) -> None:
        """Go on from the states that a pass leaves in its buffers."""
        self.columns = {key: list(columns) for key, columns in states.items()}

    def reads_before(self, seen: list[int], width: int, ahead: int) -> bool:
        """Whether a pass over draft tokens is split: no state is kept column by column while much before them is read."""
        return bool(self.layers) and ahead > 0 and width > ahead + (NARROW if any(seen) else 1)

    def finish(self, ends: list[int]) -> None:
        """End the pass: rows have now read `ends` tokens."""
        if not self.layers:
            return
        self.ends = list(ends)
        if self.is_stepped:
            self.num_states = min(self.num_states + self.num_columns, self.num_kept)
        else:
            self.starts, self.num_states = self.ends, 1

    def go_back(self, seen: list[int]) -> list[int]:
        """Rows go on from the state after their first `seen` tokens. What they have read then: nothing if one is not kept."""
        if not self.layers:
            return seen
        if not any(seen) and max(self.ends, default=0) == 1:  # a prompt of one token: rows step from there
            self.columns = {key: [torch.zeros_like(self.last(key))] for key in self.columns}
            self.starts, self.ends, self.num_states = list(seen), list(seen), 1
            return seen
        rows = list(zip(self.starts, self.ends, seen, strict=True))
        if any(wanted < start or end - wanted >= self.num_states for start, end, wanted in rows):
            self.reset(len(seen))
            return self.ends
        self.pick([end - wanted for _, end, wanted in rows], seen)
        return seen

    def follow(self, paths: list[list[int]], num_nodes: int, seen: list[int]) -> None:
        """Of a tree, the last `num_nodes` columns, rows go on from the end of their paths, and have then read `seen` tokens."""
        first, nodes = self.num_columns - num_nodes, range(num_nodes)
        skipped = [{first + node for node in nodes if node not in path} for path in paths]
        self.pick([num_nodes - 1 - (path[-1] if path else -1) for path in paths], seen, skipped)

    def pick(self, back: list[int], seen: list[int], skipped: Sequence[set[int]] = ()) -> None:
        """Rows go on from the state `back` columns before the last one, and have then read `seen` tokens.

        Args:
            skipped: see `Picked`; by default, nothing.
        """
        picked = Picked(skipped or [set()] * len(back))
        self.columns = {key: [picked(key, [columns[-1 - num] for num in back])] for key, columns in self.columns.items()}
        self.starts = self.ends = list(seen)
        self.num_states = 1

    def clear(self) -> None:
        """A call begins."""
        self.reset(0)
        self.behind: dict[Key, Tensor] = {}

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; those that leave are behind them, unless a row is named more than once."""
        if not self.layers:
            return
        only_leave = indices == sorted(set(indices))
        leaving = sorted({*range(len(self.ends))} - {*indices}) if only_leave else []
        for key in self.columns:
            state = self.last(key)
            gone = state[uploaded(leaving, state.device, torch.long)]
            self.behind[key] = torch.cat([gone, self.behind[key]]) if key in self.behind else gone
            self.columns[key] = [state[uploaded(indices, state.device, torch.long)]]
        self.starts = self.ends = [self.ends[row] for row in indices]

    def recall(self, seen: list[int]) -> None:
        """All rows are done, and come back; they have read `seen` tokens."""
        self.columns, self.behind = {key: [state] for key, state in self.behind.items()}, {}
        self.starts = self.ends = list(seen)

    def take(self, other: "Recurrence", lanes: list[int]) -> None:
        """Row i of `other` takes the place of row `lanes[i]`; where either has no state, that is 0."""
        if not self.layers:
            return
        num_rows = len(self.ends)
        for key in self.columns.keys() | other.columns.keys():
            new = other.last(key) if key in other.columns else None
            like = self.last(key) if new is None else new
            state = self.last(key).clone() if key in self.columns else like.new_zeros(num_rows, *like.shape[1:])
            state[uploaded(lanes, state.device)] = state.new_zeros(()) if new is None else new
            self.columns[key] = [state]
        ends = dict(zip(lanes, other.ends, strict=True))
        self.starts = self.ends = [ends.get(row, end) for row, end in enumerate(self.ends)]

    def load(self, cache, seen: list[int]) -> None:
        """Begin with the states of transformers' own `cache`, whose rows have read `seen` tokens."""
        self.clear()
        for place, layer in enumerate(_recurrent(cache)):
            self.columns |= {(place, name, index): [state.clone()] for name, index, state in held_by(layer)}
        self.starts = self.ends = list(seen)

    def store(self, cache, lanes: list[int]) -> None:
        """Give transformers' own `cache` the states of rows `lanes`."""
        layers = _recurrent(cache)
        for key in sorted(self.columns):
            (place, name, index), state = key, self.last(key)
            state = state[uploaded(lanes, state.device)]
            update = layers[place].update_conv_state if name == "conv" else layers[place].update_recurrent_state
            update(state, state_idx=index)


def _recurrent(cache) -> list[LinearAttentionLayer]:
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionLayer)]
