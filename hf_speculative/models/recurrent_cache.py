"""Recurrent and convolutional states of a ragged cache: those after each column since the last rollback are kept, so that each
row goes on from the one after its own last token.

A layer holds what transformers' `LinearAttentionLayer` does, and mixers read and write it as they do any cache. A single column
runs as in plain decoding, over copies. Several columns from a state are stepped (`stepped`). A prompt runs in one piece, and
leaves its last state.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..hf_compat import LinearAttentionLayer
from ..types import uploaded
from .steps import Steps, unless

#: columns beside those of a draft that are stepped; what is longer is read in one piece
NARROW = 16


class RecurrentLayer(LinearAttentionLayer):
    """States of one layer: those of a convolution are its last inputs, those of a recurrence what it has made of all.

    Attributes:
        columns: for each state, as it was at the last rollback and after each column since, each `(rows running, ...)`.
        behind: for each state, that of the rows that are done, the last ones first.
        steps: the recurrence under way, if its columns are stepped.
    """

    is_croppable = True

    def __init__(self, number_of_states: int = 1):
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        self.columns: dict[tuple[str, int], list[Tensor]] = {}
        self.behind: dict[tuple[str, int], Tensor] = {}
        self.steps: Steps | None = None

    def begin_columns(self, recurrence: "Recurrence") -> None:
        """A pass begins: what its mixers find."""
        self.recurrence, self.windows, self.steps = recurrence, {}, None  # type: ignore[var-annotated]
        for name, states in self._states():
            for index in states:
                state = self.columns[name, index][-1] if (name, index) in self.columns else None
                # Fused kernels of single steps write in place.
                states[index] = state.clone() if state is not None and recurrence.width == 1 else state
        for index, state in self.conv_states.items():
            self.has_previous_state[index] = state is not None
        state = self.recurrent_states[0]
        if state is not None and recurrence.is_stepped and recurrence.width > 1:
            self.steps = Steps(state, recurrence.is_filler, recurrence.num_kept)

    def _states(self) -> list[tuple[str, dict[int, Tensor | None]]]:
        return [("conv", self.conv_states), ("recurrent", self.recurrent_states)]

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
            if (is_filler := self.recurrence.is_filler) is not None:
                inputs = _moved_right(inputs, size, is_filler.sum(1).to(inputs.device))
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
        for name, states in self._states():
            for index, state in states.items():
                if state is None:
                    continue
                if not recurrence.is_stepped:
                    self.columns[name, index] = [state.clone()]  # a prompt's inputs are let go of
                    continue
                columns = self.columns[name, index]
                if recurrence.width > 1:
                    new = self._after_each(name, index)
                else:
                    is_filler = recurrence.is_filler
                    new = [state if is_filler is None else unless(is_filler[:, 0], state, columns[-1])]
                self.columns[name, index] = [*columns, *new][-recurrence.num_kept :]
            states.update(dict.fromkeys(states))

    def _after_each(self, name: str, index: int) -> list[Tensor]:
        width = self.recurrence.width
        if name == "conv" and index in self.windows:
            inputs = self.windows[index]
            size = inputs.shape[-1] - width
            return [inputs[..., column : column + size] for column in range(1, width + 1)]
        if name == "conv" or index or self.steps is None or self.steps.num_columns != width:
            raise RuntimeError(f"state {index} of a layer ({name}) was not kept after each column")
        return self.steps.states

    def go_back(self, num_columns: list[int]) -> None:
        """Each row goes on from its state before its last `num_columns`."""
        for key, columns in self.columns.items():
            if min(num_columns) == max(num_columns):
                self.columns[key] = [columns[-1 - num_columns[0]]]
            else:
                self.columns[key] = [torch.stack([columns[-1 - back][row] for row, back in enumerate(num_columns)])]

    def keep_rows(self, indices: list[int], leaving: list[int]) -> None:
        """Rows `indices` go on; those `leaving` are done."""
        for key, (state,) in self.columns.items():
            gone = state[uploaded(leaving, state.device, torch.long)]
            self.behind[key] = torch.cat([gone, self.behind[key]]) if key in self.behind else gone
            self.columns[key] = [state[uploaded(indices, state.device, torch.long)]]

    def recall_rows(self) -> None:
        """All rows are done, and come back."""
        self.columns, self.behind = {key: [state] for key, state in self.behind.items()}, {}

    def take_rows(self, other: "RecurrentLayer", lanes: list[int], num_rows: int) -> None:
        """Row i of `other` takes the place of row `lanes[i]` of `num_rows`; where either has no state, that is 0."""
        for key in self.columns.keys() | other.columns.keys():
            new = other.columns[key][-1] if key in other.columns else None
            like = self.columns[key][-1] if new is None else new
            state = self.columns[key][-1].clone() if key in self.columns else like.new_zeros(num_rows, *like.shape[1:])
            state[uploaded(lanes, state.device)] = state.new_zeros(()) if new is None else new
            self.columns[key] = [state]

    def load(self, given: LinearAttentionLayer) -> None:
        """Begin with the states of one of transformers' own layers."""
        held = {"conv": given.conv_states, "recurrent": given.recurrent_states}
        self.columns = {
            (name, index): [state.clone()]
            for name, states in held.items()
            for index, state in states.items()
            if state is not None
        }

    def store(self, into: LinearAttentionLayer, lanes: list[int]) -> None:
        """Give one of transformers' own layers the states of rows `lanes`."""
        for (name, index), columns in sorted(self.columns.items()):
            state = columns[-1][uploaded(lanes, columns[-1].device)]
            (into.update_conv_state if name == "conv" else into.update_recurrent_state)(state, state_idx=index)


def _moved_right(inputs: Tensor, size: int, num_filler: Tensor) -> Tensor:
    """The first `size` of `inputs (batch, ..., n)` moved past each row's first `num_filler (batch,)` columns after them."""
    place, by = torch.arange(inputs.shape[-1], device=inputs.device), num_filler[:, None]
    source = torch.where((place >= by) & (place < by + size), place - by, place)
    return inputs.gather(-1, source.view(len(inputs), *[1] * (inputs.ndim - 2), -1).expand_as(inputs))


class Recurrence:
    """How far the rows of a ragged cache have read, as its recurrent layers need to know it; without any, nothing is noted.

    Attributes:
        starts, ends: tokens that each row had read at the last rollback, and has read now.
        num_states: states that are kept: the last ones, a column each; columns of a row end in the last one.
        width, is_stepped, is_filler: of the pass under way: its columns, whether the state after each is kept, and which of
            them `(batch, columns)` leave the states as they are, if any.
        num_kept: the most states to keep after the pass.
    """

    is_filler: Tensor | None = None

    def __init__(self, layers: list[RecurrentLayer]):
        self.layers = layers
        self.reset(0)

    def reset(self, num_rows: int) -> None:
        """Begin with rows that have read nothing."""
        self.starts = self.ends = [0] * num_rows
        self.num_states = 1
        for layer in self.layers:
            layer.columns = {}

    def begin(self, seen: list[int], width: int, ahead: int, is_filler: Tensor | None) -> None:
        """Begin a pass over `width` columns, the last `ahead` of them draft tokens; rows have read `seen` tokens."""
        if not self.layers:
            return
        if not any(seen):
            self.reset(len(seen))
        elif is_filler is not None and self.num_states > 1:
            self.go_back(seen)  # states of a row would no longer follow each other column by column
        self.width, self.is_filler = width, is_filler
        is_long = width > NARROW + max(ahead, 0)
        self.is_stepped = any(seen) and not (is_long and ahead <= 0 and is_filler is None)
        self.num_kept = max(ahead, 0) + 1 if is_long else self.num_states + width
        for layer in self.layers:
            layer.begin_columns(self)

    def reads_before(self, seen: list[int], width: int, ahead: int) -> bool:
        """Whether a pass over draft tokens is split: no state is kept column by column while much before them is read."""
        return bool(self.layers) and ahead > 0 and width > ahead + (NARROW if any(seen) else 1)

    def finish(self, ends: list[int]) -> None:
        """End the pass: rows have now read `ends` tokens."""
        if not self.layers:
            return
        for layer in self.layers:
            layer.finish_columns()
        self.ends = list(ends)
        if self.is_stepped:
            self.num_states = min(self.num_states + self.width, self.num_kept)
        else:
            self.starts, self.num_states = self.ends, 1

    def go_back(self, seen: list[int]) -> list[int]:
        """Rows go on from the state after their first `seen` tokens. What they have read then: nothing if one is not kept."""
        if not self.layers:
            return seen
        rows = list(zip(self.starts, self.ends, seen, strict=True))
        if any(wanted < start or end - wanted >= self.num_states for start, end, wanted in rows):
            self.reset(len(seen))
            return self.ends
        for layer in self.layers:
            layer.go_back([end - wanted for _, end, wanted in rows])
        self.starts = self.ends = list(seen)
        self.num_states = 1
        return seen

    def clear(self) -> None:
        """A call begins."""
        self.reset(0)
        for layer in self.layers:
            layer.behind = {}

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; those that leave are behind them, unless a row is named more than once."""
        if not self.layers:
            return
        only_leave = indices == sorted(set(indices))
        leaving = [row for row in range(len(self.ends)) if row not in indices] if only_leave else []
        for layer in self.layers:
            layer.keep_rows(indices, leaving)
        self.starts = self.ends = [self.ends[row] for row in indices]

    def recall(self, seen: list[int]) -> None:
        """Rows that are done come back, which have read `seen` tokens."""
        for layer in self.layers:
            layer.recall_rows()
        self.starts = self.ends = list(seen)

    def take(self, other: "Recurrence", lanes: list[int]) -> None:
        if not self.layers:
            return
        for layer, given in zip(self.layers, other.layers, strict=True):
            layer.take_rows(given, lanes, len(self.ends))
        ends = dict(zip(lanes, other.ends, strict=True))
        self.starts = self.ends = [ends.get(row, end) for row, end in enumerate(self.ends)]

    def load(self, cache, seen: list[int]) -> None:
        given = [layer for layer in cache.layers if isinstance(layer, LinearAttentionLayer)]
        for layer, one in zip(self.layers, given, strict=True):
            layer.load(one)
        self.starts = self.ends = list(seen)
