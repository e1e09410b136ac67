"""What rounds cost on this machine: ratios to a plain step, learned from the rounds that calls run and kept on disk.

No round is run for its time alone. A pass over more columns and a longer draft are assumed to cost little until a round has
shown it, so that a call tries them itself. What was measured lies beside the compiled passes: a process begins with it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median_low
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ..models import Inputs, how_passes_run, is_sharded
from ..models.artifacts import NOT_OF_PASSES, folder, processor
from ..types import Batch, Costs
from ..version import __version__
from .configuration import Options

#: rounds of a kind after which its cost counts as known: their median no longer follows one busy moment
SETTLED = 8
#: rows of a pass that computes for as long as it reads the weights, on a CPU and on anything else: roofline, in orders of size
BALANCE_ON_CPU, BALANCE = 32, 256
#: draft lengths and tree sizes whose costs are told: between them costs are nearly linear
SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
#: numbers of levels whose costs are told, of drafters that make trees a level at a time
LEVELS = (1, 8)

#: part of a round ("pass", "draft", or "step" for seconds of a plain one), rows, and columns or levels
Cell = tuple[str, int, int]


def assumed_column(num_rows: int, device: torch.device) -> float:
    """Plain steps of one more column in each row, where none was measured: a pass reads weights once, and computes for each."""
    share = num_rows / (BALANCE_ON_CPU if device.type == "cpu" else BALANCE)
    return share / (1 + share)


class CostTable:
    """Costs of rounds by rows and columns, and of drafts by rows and levels, as ratios of a plain step of as many rows.

    Args:
        column: assumed cost of one more column, by rows.
        level: assumed cost of one more level of a draft.
        path: the file that keeps the table; `None` for this process only.
    """

    def __init__(self, column: Callable[[int], float], level: float, path: Path | None = None):
        self.column, self.level, self.path = column, level, path
        self.cells: Mapping[Cell, tuple[float, ...]] = {} if path is None else _read(path)
        self.warm: set[Cell] = set()

    def add(self, cell: Cell, value: float) -> None:
        """One more measurement; the oldest ones give way."""
        # Made anew: calls in other threads may be reading.
        self.cells = {**self.cells, cell: (*self.cells.get(cell, ()), value)[-SETTLED:]}

    def is_settled(self, *cells: Cell) -> bool:
        return all(len(self.cells.get(cell, ())) >= SETTLED for cell in cells)

    def ratio(self, part: str, num_rows: int, size: int) -> float:
        """Of a pass over `size` columns, or a draft of `size` levels: on the line between those measured."""
        first, base, slope = (1, 1.0, self.column(num_rows)) if part == "pass" else (0, 0.0, self.level)
        known = {
            n: median_low(ratios) for (of, rows, n), ratios in self.cells.items() if (of, rows) == (part, num_rows)
        }
        known[first] = base
        below = max(n for n in known if n <= size)
        above = min((n for n in known if n > size), default=None)
        if above is None:  # half of the mean slope so far, so that it is tried where it might pay
            slope = (known[below] - base) / (below - first) / 2 if below > first else slope
            return known[below] + slope * (size - below)
        at = known[below] + (known[above] - known[below]) * (size - below) / (above - below)
        return min([at, *(ratio for n, ratio in known.items() if n > size)])  # less for more is noise

    def costs(self, num_rows: int, guesses: bool = False, branches: bool = False) -> Costs:
        """In seconds, of batches of `num_rows` and of all others that were measured.

        Args:
            guesses: drafts take no pass, and were made before their length is chosen.
            branches: drafts may be trees, made a level at a time.
        """
        steps = {rows: median_low(seconds) for (part, rows, _), seconds in self.cells.items() if part == "step"}
        for more, fewer in sorted(((a, b) for a in steps for b in steps if a > b), reverse=True):
            steps[fewer] = min(steps[fewer], steps[more])  # fewer rows take no longer: the machine was slower then
        steps.setdefault(num_rows, max(steps.values(), default=1.0))
        rounds, trees, free = {}, {}, {}
        for rows, step in steps.items():
            passes = {n: step * self.ratio("pass", rows, n + 1) for n in SIZES}
            drafts = {n: step * self.ratio("draft", rows, n) for n in {*SIZES, *LEVELS}}
            free[rows] = passes
            rounds[rows] = passes if guesses else {n: passes[n] + drafts[n] for n in SIZES}
            trees[rows] = {levels: {n: passes[n] + drafts[levels] for n in SIZES[1:]} for levels in LEVELS}
        return Costs(rounds, trees if branches else {}, Costs(free))

    def keep(self) -> None:
        """Write the table for later processes, whole or not at all."""
        if self.path is None:
            return
        part = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps([[*cell, values] for cell, values in sorted(self.cells.items())]))
            part.replace(self.path)
        except OSError as error:
            warnings.warn(f"costs of rounds are kept in this process only: {error}", stacklevel=2)
            self.path = None


def _read(path: Path) -> dict[Cell, tuple[float, ...]]:
    try:
        cells = {(part, rows, size): (*values,) for part, rows, size, values in json.loads(path.read_text())}
        values = [value for values in cells.values() for value in values]
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError("costs that are not above 0")
        return cells
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        warnings.warn(f"{path} is damaged, and costs of rounds are measured anew: {error}", stacklevel=2)
        return {}


_known: WeakKeyDictionary[PreTrainedModel, WeakKeyDictionary[object, dict[tuple, CostTable]]] = WeakKeyDictionary()
_lock = threading.Lock()


class MeasuredCosts:
    """What is known of a call's rounds: what `Schedule.begin` is given.

    Attributes:
        table: of calls of this kind, once it was asked for; it learns where the call's ranks do not wait for each other.
    """

    table: CostTable | None = None

    def __init__(self, options: Options, model: PreTrainedModel, inputs: Inputs, batch: Batch, is_alone: bool = True):
        self.options, self.model, self.inputs, self.batch = options, model, inputs, batch
        models = (model, options.source.draft_model)
        self.may_learn = not (options["synced_gpus"] or any(map(is_sharded, models)))
        self.is_kept = is_alone and self.may_learn

    def __call__(self) -> Costs:
        with _lock:
            of_target = _known.setdefault(self.model, WeakKeyDictionary())
            tables, kind = of_target.setdefault(self.options.source.costs_end_with(self.model), {}), self._kind()
            if kind not in tables:
                tables[kind] = self._table(kind)
            self.table = tables[kind]
        return self.so_far(len(self.batch.rows))

    def so_far(self, num_rows: int) -> Costs:
        assert self.table is not None
        source = self.options.source
        return self.table.costs(num_rows, source.guesses_nodes, source.grows_levels and self.batch.branches)

    def _table(self, kind: tuple) -> CostTable:
        device, level = self.model.device, self.options.source.cost_of_token(self.model)
        path = None
        if self.is_kept:
            described = hashlib.sha256(repr([kind, *map(_described, self._models())]).encode()).hexdigest()
            path = folder() / f"costs-{described[:24]}.json"
        return CostTable(lambda rows: assumed_column(rows, device), level, path)

    def _models(self) -> list[PreTrainedModel]:
        return [model for model in (self.model, self.options.source.draft_model) if model is not None]

    def _kind(self) -> tuple:
        """What the costs of a pair depend on beside its models."""
        source, own, config = self.options.source, self.options.config, self.inputs.generation_config
        execution = self.options.execution(self.model)
        rule = own.rule if own.rule is None or isinstance(own.rule, str) else type(own.rule).__qualname__
        sampling = (config.do_sample, own.reproducible, own.draft_sample_method, rule)
        filters = tuple(config.do_sample and bool(value) for value in (config.top_k, (config.top_p or 1) < 1))
        place = (str(self.model.dtype), self.model.device.type, torch.get_num_threads(), execution.captures)
        passes = how_passes_run(execution.compile, self.model, source.draft_model)
        return (source.cost_key, *sampling, *filters, *map(str, self.inputs.others), *place, *passes)


def _described(model: PreTrainedModel) -> tuple:
    """Model and machine, as far as its passes' times depend on them."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_OF_PASSES}
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else processor()
    return type(model).__name__, sorted(config.items()), device, torch.__version__, __version__
