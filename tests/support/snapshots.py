"""Prose, held as a whole: a file a page, which `UPDATE_SNAPSHOTS=1 pytest` writes anew and `git diff` shows."""

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "snapshots"


def assert_as_stored(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} says otherwise: UPDATE_SNAPSHOTS=1 writes it anew"
