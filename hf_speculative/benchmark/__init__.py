"""How fast is a pair, and how fast could it be? Any pair, or one with random weights, measured in one run.

from hf_speculative import benchmark

report = benchmark.run(benchmark.CalibratedPair("tinyllama-1.1b"), benchmark.sweep(acceptance=[0.8], batch=[1, 4]))
"""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .calibrated import CalibratedPair
    from .cells import Cell, sweep
    from .measure import run
    from .methods import METHODS, Method
    from .pairs import Calibration, Pair
    from .passes import Passes, theoretical_speedup
    from .results import CellResult, MethodResult, Report, Sample
    from .shapes import SHAPES, Shape
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".calibrated": ["CalibratedPair"],
            ".cells": ["Cell", "sweep"],
            ".measure": ["run"],
            ".methods": ["METHODS", "Method"],
            ".pairs": ["Calibration", "Pair"],
            ".passes": ["Passes", "theoretical_speedup"],
            ".results": ["CellResult", "MethodResult", "Report", "Sample"],
            ".shapes": ["SHAPES", "Shape"],
        },
    )

__all__ = [
    "METHODS",
    "SHAPES",
    "CalibratedPair",
    "Calibration",
    "Cell",
    "CellResult",
    "Method",
    "MethodResult",
    "Pair",
    "Passes",
    "Report",
    "Sample",
    "Shape",
    "run",
    "sweep",
    "theoretical_speedup",
]
