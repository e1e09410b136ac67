"""The notebooks in examples/, run as Jupyter runs them; `python -m tests.support.notebooks` stores what they print."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run in a kernel of its own, in a folder; a cell that raises raises here."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def code(path: Path) -> str:
    """All code of a notebook as one program."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "code")


def stored(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """What is kept of a cell's outputs: warnings and bars are the machine's."""
    return [output for output in cell.outputs if output.get("name") != "stderr"]


def _store(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(path, Path(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times, which differ from run to run
        if "outputs" in cell:
            cell.outputs = stored(cell)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for one in NOTEBOOKS:
        _store(one)
