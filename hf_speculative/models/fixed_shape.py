"""A target whose logits have the same bits for any draft around a token: by our kernels, or in passes that all have one shape.

Rounding of torch's products and attention depends on shapes: on the rows and columns of a pass, and on the slots it reads. In
passes of one shape a row keeps its lane until it is done. Columns without a draft token hold filler, rolled back like a
rejected draft. Each prompt is read alone, in a pass of its own length.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..forwarding import Forwarded
from ..interfaces import CachedModel
from ..types import Batch, uploaded
from . import native
from .attention import folds_by
from .cached_model import device_of
from .execution import Execution, ragged_model
from .linears import num_by_kernel
from .probe import extend, once, random_tokens
from .prompts import read_alone
from .replays import ladder
from .static import StaticModel

#: columns of a pass: a token and up to 7 draft tokens
NUM_COLUMNS = 8
#: rows and columns of passes of any shape that are tried
TRIED_ROWS, TRIED_COLUMNS = 3, 16
#: texts on which a model is tried: routing to experts, for example, shapes products inside a pass
SEEDS = 2


class FixedShape(CachedModel):
    """`model` in passes of one shape.

    Chains only: the accepted path of a tree is computed in other slots than a chain.

    Args:
        model: runs the passes; it must not be shared.
        num_lanes: rows of a pass; `None`: those of the call.
    """

    max_columns = NUM_COLUMNS
    num_forwards = Forwarded("model", "num_forwards")  # type: ignore[assignment]
    release = Forwarded("model", "release")  # type: ignore[assignment]

    def __init__(self, model: StaticModel, num_lanes: int | None = None):
        self.model, self.num_lanes = model, num_lanes
        self.reset()

    def reset(self) -> None:
        self.model.reset()
        #: the rows of a pass, of which those at `lanes` are the batch's
        self.all_rows: Batch | None = None
        self.lanes: list[int] = []

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        rows = self.all_rows or self._begin(batch)
        unread = slice(min(batch.host_lengths) - 1, end := max(batch.host_lengths) + ahead)
        rows.reserve(end + NUM_COLUMNS)
        rows.tokens[self.index, unread] = batch.tokens[:, unread]
        logits = self.model.logits(rows, ahead=NUM_COLUMNS - 1, num_last=NUM_COLUMNS)
        return logits[self.index, ahead + 1 - num_last : ahead + 1]

    def _begin(self, batch: Batch) -> Batch:
        """Read the prompts; lanes beyond the batch hold copies of its first row, whose logits are not used."""
        num_rows, num_lanes = len(batch.rows), max(len(batch.rows), self.num_lanes or 0)
        self.all_rows = batch.part([*range(num_rows), *[0] * (num_lanes - num_rows)])
        self._set_lanes(list(range(num_rows)))
        self.model.lay_out(self.all_rows, ladder(batch.max_length + NUM_COLUMNS))
        read_alone(self.model, self.all_rows, list(range(num_lanes)))
        return self.all_rows

    def _set_lanes(self, lanes: list[int]) -> None:
        """Set the lanes of the batch's rows, as a list and on the device."""
        assert self.all_rows is not None
        self.lanes, self.index = lanes, uploaded(lanes, self.all_rows.tokens.device, torch.long)

    def rollback(self, batch: Batch) -> None:
        if self.all_rows is None:
            return
        for lane, length in zip(self.lanes, batch.host_lengths, strict=True):
            self.all_rows.host_lengths[lane] = length
        self.all_rows.lengths = self.all_rows.lengths.index_copy(0, self.index, batch.lengths)
        self.model.rollback(self.all_rows)

    def select(self, indices: list[int]) -> None:
        """Keep rows; a repeated row gets a lane without a cache: `admit` follows, or nothing was read yet."""
        if self.all_rows is None:
            return
        kept = [self.lanes[i] for i in indices]
        free = (lane for lane in range(len(self.all_rows.rows)) if lane not in kept)
        self._set_lanes([lane if lane not in kept[:i] else next(free) for i, lane in enumerate(kept)])

    def prefill(self, batch: Batch) -> None:
        """Do nothing: the first pass reads each text once."""

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.all_rows is not None:
            lanes = [self.lanes[lane] for lane in lanes]
            self.all_rows.admit(newcomers, lanes)
            read_alone(self.model, newcomers, lanes)

    def fresh(self):
        fresh = copy.copy(self)
        fresh.model, fresh.all_rows, fresh.lanes = self.model.fresh(), None, []
        return fresh

    def hidden_states(self, positions: Tensor, lanes: Sequence[int] | None = None) -> Tensor:
        return self.model.hidden_states(positions, self.lanes if lanes is None else [self.lanes[lane] for lane in lanes])

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self.model.keys_and_values(layer)
        lanes = self.index.to(keys.device)
        return keys[lanes], values[lanes]

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        self.model.done = [(row, self.model.host_seen[row], 0) for row in range(len(padding))]
        return self.model.store(given, sequences, padding, lengths)


def free_columns(model: PreTrainedModel, execution: Execution, num_rows: int) -> int:
    """The widest pass up to which a token's logits have the same bits in any, since our kernels compute them; else 0.

    Tried on random tokens: one at a time against many at a time, alone and beside others in other lanes. It is tried once for
    each model object and kind of passes.

    Args:
        execution: of passes.
        num_rows: of a pass.
    """
    num = num_by_kernel(model)
    if not num:
        return 0

    def trial() -> int:
        target = ragged_model(model, execution=execution)
        target.reads_alone = True
        columns = min(TRIED_COLUMNS, native.WIDE // max([1, *folds_by(target.model)]))
        return columns if _are_same(model, target, TRIED_ROWS, columns) else 0

    kind = free_columns, execution, num, model.dtype, torch.get_num_threads()
    columns = min(once(model, kind, trial), native.WIDE // num_rows)
    return columns if columns >= NUM_COLUMNS else 0


def fixes_bits(model: PreTrainedModel, target: FixedShape, num_rows: int) -> bool:
    """Whether a token's logits have the same bits, in passes of one shape, for any content of other columns and lanes.

    Tried on random tokens: one at a time against 8 at a time, in other lanes and with more slots. It is tried once for each
    model object, kind of passes and number of lanes.
    """
    num_lanes = max(num_rows, target.num_lanes or 0)
    how = type(target.model), target.model.capture is not None, num_by_kernel(model)
    kind = (fixes_bits, *how, num_lanes, model.dtype, model.device, torch.get_num_threads())
    are_same = once(model, kind, lambda: _are_same(model, target, num_lanes, NUM_COLUMNS))
    target.model.num_forwards = 0
    return are_same


def _are_same(model: PreTrainedModel, target: CachedModel, num_lanes: int, num_columns: int) -> bool:
    padding, order = list(range(num_lanes)), list(reversed(range(num_lanes)))
    for seed in range(SEEDS):
        tokens = random_tokens(model, num_lanes, 4 + num_lanes + num_columns, seed).to(device_of(model))
        singly = _logits(target, tokens, padding, [1] * num_columns, 0)
        at_once = _logits(target, tokens[order], padding[::-1], [num_columns], ladder(1))
        alone = singly[:1]
        if not isinstance(target, FixedShape):  # whose rows are never alone in a pass
            alone = _logits(target, tokens[:1], padding[:1], [num_columns], 0)
        if not (torch.equal(singly, at_once[order]) and torch.equal(singly[:1], alone)):
            return False
    return True


def _logits(target: CachedModel, tokens: Tensor, padding: list[int], passes: list[int], num_more: int) -> Tensor:
    """Logits after the prompts and after all further tokens but the last, fed in `passes`."""
    width = tokens.shape[1] - sum(passes)
    batch = Batch(tokens[:, :width], padding, tokens.shape[1] + num_more)
    target.reset()
    found = []
    for num_tokens in passes:
        new = tokens[:, batch.host_lengths[0] :][:, :num_tokens]
        batch.put(new[:, :-1])
        found.append(target.logits(batch, ahead=num_tokens - 1, num_last=num_tokens))
        extend(batch, new)
        target.rollback(batch)
    target.release()
    target.reset()
    return torch.cat(found, 1)
