"""economize (Laitenberger 2026), which takes its draft model by name and drafts a constant number of tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..fixtures import Folder, made_once, weights_of

if TYPE_CHECKING:
    from ..cells import Cell
    from ..pairs import Pair


def generate(pair: Pair, cell: Cell, call: dict[str, Any]):
    """The ids of `call`, with new ones."""
    import economize

    settings: dict[str, Any] = {"cycle_length": cell.num_draft_tokens + 1}
    if cell.temperature:
        settings["verifier"] = "rejection"
    applied, _ = made_once(pair, "economize", weights_of(cell), partial(_applied, pair))
    return applied.generate(**call, decoding=economize.DecodeConfig(**settings))


def _applied(pair: Pair):
    import economize
    from economize.techniques.draft_model import DraftModelConfig

    folder = Folder()
    pair.draft.save_pretrained(folder.path)
    return economize.apply(pair.target, DraftModelConfig(model=str(folder.path))), folder
