"""What peers have made of a pair: a folder, loaded models."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ..cells import Cell
    from ..pairs import Pair

Made = TypeVar("Made")
#: of each pair, what its weights were calibrated for, and what was made of them
_made: WeakKeyDictionary[Pair, tuple[tuple, dict]] = WeakKeyDictionary()


def made_once(pair: Pair, cell: Cell, what: Hashable, make: Callable[[], Made]) -> Made:
    """What `make` gives, made anew only when the pair's weights are other ones: a shape's, for another acceptance."""
    calibrated_for = (cell.acceptance, cell.temperature)
    if pair not in _made or _made[pair][0] != calibrated_for:
        _made[pair] = calibrated_for, {}
    made = _made[pair][1]
    if what not in made:
        made[what] = make()
    return made[what]


class Folder:
    """A temporary folder that goes when nothing holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="hf_speculative-peers-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
