"""What methods have made of a pair: copies, folders, loaded models."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from .cells import Cell
    from .pairs import Pair

Made = TypeVar("Made")
#: of each pair, by name: what it was made for, and itself
_made: WeakKeyDictionary[Pair, dict[str, tuple[object, object]]] = WeakKeyDictionary()


def made_once(pair: Pair, what: str, made_for: object, make: Callable[[], Made]) -> Made:
    """What `make` gives: kept, and let go of before it is made for something else."""
    made = _made.setdefault(pair, {})
    if what not in made or made[what][0] != made_for:
        made.pop(what, None)
        made[what] = made_for, make()
    return cast(Made, made[what][1])


def weights_of(cell: Cell) -> tuple[float | None, float]:
    """What the pair's weights are calibrated for: a shape's are others for another acceptance."""
    return cell.acceptance, cell.temperature


class Folder:
    """A temporary folder that goes when nothing holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="hf_speculative-peers-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
