"""Measuring: all methods on the same prompts in one run, interleaved, with the bare passes of the models in between.

Each measurement is two `generate` calls, one of `num_new_tokens` and one of a quarter of it, under the same seed. Their
difference is decoding alone: the prompt's passes and set-up cancel out. All texts have the length asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..call.statistics import record
from ..reports.environment import environment
from ..reports.timing import timed
from .cells import Cell
from .heads import share_of_pass
from .methods import DEFAULT_METHODS, Method, chosen_methods
from .pairs import Pair
from .passes import PassTimer, copy_bandwidth
from .results import CellResult, MethodResult, Report, Sample

#: called before each step with what comes next and how many of how many steps are done
Watch = Callable[[str, int, int], None]


def run(
    pair: Pair,
    cells: Sequence[Cell],
    methods: Iterable[str | Method] = DEFAULT_METHODS,
    num_new_tokens: int = 64,
    repeats: int = 3,
    watch: Watch = lambda what, done, total: None,
    on_cell: Callable[[CellResult, Report], None] = lambda cell, report: None,
) -> Report:
    """Measure a pair in each cell with each method.

    A `KeyboardInterrupt` ends it early; the report then holds whatever has at least one complete repeat.

    Args:
        pair: a `Pair`, or a `CalibratedPair`.
        cells: from `sweep`.
        methods: names in `METHODS` or methods of your own; plain decoding is always measured.
        num_new_tokens: tokens generated for each row.
        repeats: interleaved repeats; the methods' order is rotated from one to the next.
        watch: for a progress bar.
        on_cell: called with each cell as soon as it is measured.

    Raises:
        ValueError: a setting is out of range, does not fit the models, or has an unknown name.
    """
    chosen = chosen_methods(methods)
    _check(pair, cells, num_new_tokens, repeats)
    for method in chosen:
        if method.head is not None:
            pair.head(method.head)
    settings = {
        "num_new_tokens": num_new_tokens,
        "repeats": repeats,
        "methods": {m.name: m.description for m in chosen},
    }
    report = Report(pair.name, environment(pair.target), settings, copy_bandwidth(pair.device))
    steps = Steps(watch, total=sum(1 + (1 + repeats) * len(_methods_for(cell, chosen)) for cell in cells))
    try:
        for cell in cells:
            try:
                _measure_cell(pair, cell, _methods_for(cell, chosen), num_new_tokens, repeats, steps, report, on_cell)
            except RuntimeError as error:  # this cell's own, out of memory say; the others go on
                report.failures[str(cell)] = str(error)
    except KeyboardInterrupt:
        report.is_interrupted = True
    return report


class Steps:
    """Counts steps for whoever watches."""

    def __init__(self, watch: Watch, total: int):
        self.watch, self.total, self.done = watch, total, 0

    def next(self, what: str) -> None:
        self.watch(what, self.done, self.total)
        self.done += 1


def _check(pair: Pair, cells: Sequence[Cell], num_new_tokens: int, repeats: int) -> None:
    if num_new_tokens < 8:
        raise ValueError(f"`num_new_tokens={num_new_tokens}`: give 8 or more, so that a quarter of it is a call, too.")
    for cell in cells:
        if num_new_tokens - num_new_tokens // 4 <= cell.num_draft_tokens + 1:
            raise ValueError(
                f"`num_new_tokens={num_new_tokens}` is too few for `num_draft_tokens={cell.num_draft_tokens}`: a measurement "
                f"is longer than a round; give {2 * cell.num_draft_tokens + 4} or more."
            )
    if repeats < 1:
        raise ValueError(f"`repeats={repeats}`: give 1 or more.")
    longest = max(cell.context + num_new_tokens + cell.num_draft_tokens for cell in cells)
    if pair.max_positions is not None and longest > pair.max_positions:
        raise ValueError(
            f"`context` plus `num_new_tokens` plus a draft is {longest} tokens, but {pair.name} takes {pair.max_positions}: "
            "give less of one of them."
        )


def _methods_for(cell: Cell, methods: list[Method]) -> list[Method]:
    return [method for method in methods if method.max_batch is None or cell.batch <= method.max_batch]


def _measure_cell(
    pair: Pair,
    cell: Cell,
    methods: list[Method],
    num_new_tokens: int,
    repeats: int,
    steps: Steps,
    report: Report,
    on_cell: Callable[[CellResult, Report], None],
) -> None:
    steps.next(f"{cell}: preparing the pair")
    calibration = pair.prepare(cell.acceptance, cell.temperature)
    lengths = (num_new_tokens, num_new_tokens // 4)
    timer, unsupported_reason = _pass_timer(pair, cell, num_cached=cell.context + sum(lengths) // 2)
    results = {
        m.name: MethodResult(
            m.name,
            m.is_speculative,
            m.is_ours,
            cell.batch,
            is_bounded=m.is_bounded,
            draft_share=share_of_pass(pair.head(m.head), pair.target) if m.head else None,
        )
        for m in methods
    }
    result = CellResult(cell, results, calibration, timer.passes if timer else None, unsupported_reason)
    if timer is not None:
        result.draft_cache_bytes = timer.passes.draft_cache_bytes * (cell.context + num_new_tokens) // timer.num_cached
    for method in methods:
        steps.next(f"{cell}: {method.name}, warm-up")
        # both lengths: what is compiled or captured may depend on the length of the cache
        texts, _ = (Call(pair, cell, method, length, seed=0).result for length in lengths)
        if method is methods[0]:
            plain = texts
        elif method.package is not None and cell.temperature == 0:
            results[method.name].num_equal_rows = num_equal_rows(texts, plain)
    try:
        for repeat in range(repeats):
            samples = {}
            first = repeat % len(methods)
            for method in methods[first:] + methods[:first]:
                steps.next(f"{cell}: {method.name}, {repeat + 1} of {repeats}")
                long, short = (Call(pair, cell, method, length, seed=repeat) for length in lengths)
                samples[method.name] = long, long.less(short)
                if timer is not None:
                    timer.measure()
            for name, (long, sample) in samples.items():  # a repeat counts once all methods have it
                results[name].samples.append(sample)
                results[name].statistics += long.statistics
                if long.peak_bytes is not None:
                    results[name].peak_bytes = max(long.peak_bytes, results[name].peak_bytes or 0)
    finally:
        if results["plain"].samples:
            report.cells.append(result)
            on_cell(result, report)


def _pass_timer(pair: Pair, cell: Cell, num_cached: int) -> tuple[PassTimer | None, str | None]:
    try:
        return PassTimer(pair, cell, num_cached), None
    except ValueError as error:
        return None, str(error)


class Call:
    """One timed `generate` call.

    Attributes:
        result: what it gave.
        statistics: of a method of ours; empty for others.
        num_passes: forwards of the target, `None` where they cannot be counted.
        num_row_passes: their rows added up, 0 if they cannot be counted. In our methods, a row that is done leaves the batch.
    """

    def __init__(self, pair: Pair, cell: Cell, method: Method, num_new_tokens: int, seed: int):
        prompts = pair.prompts(cell.batch, cell.context)
        call = {
            "input_ids": prompts,
            "attention_mask": torch.ones_like(prompts),
            "max_new_tokens": num_new_tokens,
            **end_settings(pair, num_new_tokens),
            **sampling_settings(cell),
        }
        self.num_tokens, self.method = cell.batch * num_new_tokens, method
        self.num_passes: int | None = None if method.is_speculative else num_new_tokens
        self.peak_bytes: int | None = None
        on_gpu = pair.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(pair.device)
            before = torch.cuda.memory_allocated(pair.device)
        forwards: list[torch.nn.Module] = []
        hook = pair.target.register_forward_pre_hook(lambda module, _: forwards.append(module))
        if not method.counts_passes:
            hook.remove()
        torch.manual_seed(seed)
        try:
            with record() as self.statistics:
                self.result, seconds = timed(lambda: method.generate(pair, cell, call), pair.device)
        finally:
            hook.remove()
        # Measuring costs ends after a few calls of a pair, which is not what a few repeats should tell.
        self.seconds = seconds - self.statistics.seconds["probe"]
        if method.counts_passes:
            # a draft of the target's first layers is a shallow copy, which has the same hooks
            self.num_passes = sum(module is pair.target for module in forwards)
        elif method.is_ours:
            self.num_passes = self.statistics.num_target_forwards
        self.num_row_passes = self.statistics.num_rounds if method.is_ours else cell.batch * (self.num_passes or 0)
        if on_gpu:
            self.peak_bytes = torch.cuda.max_memory_allocated(pair.device) - before

    def less(self, short: Call) -> Sample:
        """The difference between this call and a shorter one."""
        own, other = self.statistics, short.statistics
        stages = {name: own.seconds[name] - other.seconds[name] for name in own.seconds}
        stages["overhead"] = stages.pop("rest")
        return Sample(
            seconds=self.seconds - short.seconds,
            call_seconds=self.seconds,
            num_tokens=self.num_tokens - short.num_tokens,
            num_rounds=None
            if self.num_passes is None or short.num_passes is None
            else self.num_passes - short.num_passes,
            num_row_rounds=self.num_row_passes - short.num_row_passes,
            num_call_row_rounds=self.num_row_passes,
            num_drafted=own.num_draft_tokens - other.num_draft_tokens,
            num_draft_passes=own.num_draft_forwards - other.num_draft_forwards,
            stages=stages if self.method.is_ours else {},
        )


def num_equal_rows(texts, others) -> int:
    """Rows of the same tokens."""
    width = min(texts.shape[1], others.shape[1])
    return int((texts[:, :width] == others[:, :width].to(texts.device)).all(1).sum())


def end_settings(pair: Pair, num_new_tokens: int) -> dict[str, Any]:
    """Settings under which every text has the same length: no end token ends it early."""
    config = pair.target.generation_config
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    return {"pad_token_id": pad} | ({} if config.eos_token_id is None else {"min_new_tokens": num_new_tokens})


def sampling_settings(cell: Cell) -> dict[str, Any]:
    """Settings of sampling, temperature only: the distribution that `theory.acceptance_rate` is about."""
    if cell.temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": cell.temperature, "top_k": 0, "top_p": 1.0}
