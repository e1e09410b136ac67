"""Other packages that decode with a draft, measured on the same pair: each is there where it is installed.

What a peer needs of the pair is written once to a temporary folder, and goes with the pair. Its tokens are compared with plain
decoding's, see `measure.py`.
"""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from .cells import Cell
    from .pairs import Pair

_ready: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def why_missing(package: str) -> str | None:
    """What to do where a peer is not installed; `None` if it is."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"it needs {package}: pip install 'hf_speculative[peers]'"


def economize(pair: Pair, cell: Cell, call: dict[str, Any]):
    """economize (Laitenberger 2026), which takes its draft model by name and drafts a constant number of tokens."""
    import economize as package
    from economize.techniques.draft_model import DraftModelConfig

    if pair not in _ready:
        folder = tempfile.mkdtemp(prefix="hf_speculative-peers-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        pair.draft.save_pretrained(folder)
        _ready[pair] = package.apply(pair.target, DraftModelConfig(model=folder))
    settings: dict[str, Any] = {"cycle_length": cell.num_draft_tokens + 1}
    if cell.temperature:
        settings["verifier"] = "rejection"
    return _ready[pair].generate(**call, decoding=package.DecodeConfig(**settings))
