"""README, docs and examples say what is true: their code runs, their links lead somewhere."""

import importlib
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import hf_speculative as hs
from hf_speculative.measuring import plan, results
from tests.support.cases import EVERY_CASE, slow_but

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.py")), ROOT / "examples" / "bench" / "calibrated.py"]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
TRAINING = "train_embedded_pair.py"
#: run by a test of its own: the slow one here, the others in tests/integrations
RUN_ELSEWHERE = (TRAINING, "ray_batch_inference.py", "ray_predictor.py", "serve_replicas.py", "train_with_trl.py")
#: seconds after which a page or an example hangs
TIMEOUT = 300


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


CODE = [page for page in PAGES if blocks(page)]


def test_there_is_code_to_run():
    assert {page.name for page in CODE} >= {"README.md", "extend.md", "correctness.md"}


QUICK = ("README.md", "quickstart.md", "no-draft-model.md", "trees.md")


@pytest.mark.parametrize(
    "page", slow_but(CODE, *(page for page in CODE if page.name in QUICK), every=True), ids=lambda page: page.name
)
def test_code_blocks_run(page, tmp_path):
    def run():
        plan.FEWEST_TOKENS = results.FEWEST_TOKENS  # as users have it
        for block in blocks(page):  # with names of its own
            exec(compile(block, page.name, "exec"), {"__name__": "__main__"})

    forked(tmp_path, ["-c"], run)


def test_what_pages_and_examples_import_is_there():
    """Also of those that run in the slow tests alone."""
    texts = [text for page in CODE for text in blocks(page)] + [path.read_text() for path in EXAMPLES]
    imports = [re.findall(r"^from (hf_speculative[\w.]*) import ([\w, ]+)$", text, re.MULTILINE) for text in texts]
    named = {
        (module, name.split(" as ")[0].strip()) for found in imports for module, names in found for name in names.split(",")
    }
    assert len(named) > 20
    for module, name in named:
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_files_named_in_the_docs_exist():
    named = set()
    for page in PAGES:
        named |= set(re.findall(r"`((?:tests|examples|docs|hf_speculative)/[\w./-]*\w\.(?:py|md))`", page.read_text()))
    assert named and not {name for name in named if not (ROOT / name).exists()}


def visited() -> list[str]:
    """Modules of the package that a greedy call visits, in the order of the first visits."""
    modules: dict[str, None] = {}

    def note(frame, event, argument):
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if event == "call" and package == hs.__name__:
            modules[module] = None

    with hs.patch_transformers():
        for profile in (None, note):  # the first call imports what is imported late
            target, draft, tokenizer = hs.embedded_pair()
            inputs = tokenizer(["def main():\n"], return_tensors="pt")
            modules.clear()
            sys.setprofile(profile)
            try:
                target.generate(**inputs, draft_model=draft, do_sample=False, max_new_tokens=16)
            finally:
                sys.setprofile(None)
    return [*modules]


def test_one_call_is_followed_as_it_goes():
    """The modules that the steps of docs/how-it-works.md name, in their order, up to the results."""
    steps = (ROOT / "docs" / "how-it-works.md").read_text().split("## One call")[1].split("**Results**")[0]
    named = [path.replace("/", ".") for path in re.findall(r"`([\w/]+)\.py`", steps)]
    assert len(named) > 10 and named == [module for module in visited() if module in named]


ARGUMENTS = {
    "calibrated.py": ["--new-tokens", "8", "--repeats", "2", "--context", "8"],
    "quality_unchanged.py": ["--limit", "2", "--max-new-tokens", "8"],
    "compare_batching.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "2"],
    "compare_encoder_decoder.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "1"],
    "compare_tokenizers.py": ["--max-new-tokens", "8", "--repeats", "1"],
    "evaluate_with_trainer.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "2", "--num-batches", "1"],
    "serve_under_load.py": ["--requests", "4", "--clients", "2", "--max-tokens", "4"],
    "train_with_generation.py": ["--steps", "2", "--num-samples", "2", "--max-new-tokens", "8"],
}


#: run with `EVERY_CASE=1`
LONG = () if EVERY_CASE else ("serve_under_load.py", "quality_unchanged.py")
RUN_HERE = [path for path in EXAMPLES if path.name not in (*RUN_ELSEWHERE, *LONG)]
QUICK_HERE = ("quickstart", "streaming", "custom_drafter", "with_pipeline", "compare_batching", "train_with_generation")


@pytest.mark.parametrize(
    "path",
    slow_but(RUN_HERE, *(path for path in RUN_HERE if path.stem in QUICK_HERE), every=True),
    ids=lambda path: path.name,
)
def test_examples_run(path, tmp_path):
    arguments = [str(path), *ARGUMENTS.get(path.name, [])]
    assert forked(tmp_path, arguments, lambda: runpy.run_path(str(path), run_name="__main__")).strip()


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_first_notebook_runs(tmp_path):
    """Its code as a program, which is quick; slowly, all of them as Jupyter runs them."""
    path = ROOT / "examples" / "quickstart.ipynb"
    code = "\n\n".join(cell.source for cell in code_cells(nbformat.read(path, as_version=4)))
    program = compile(code, path.name, "exec")
    forked(tmp_path, ["-c"], lambda: exec(program, {"__name__": "__main__"}))


@pytest.mark.release
@pytest.mark.filterwarnings("default")  # Jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_in_jupyter_and_are_stored_with_what_they_print(path, tmp_path):
    """Warnings and bars, which are the machine's, are not kept."""
    stored, run = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(run, timeout=TIMEOUT, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kept = [[output for output in cell.outputs if output.get("name") != "stderr"] for cell in code_cells(run)]
    assert [bool(outputs) for outputs in kept] == [bool(cell.outputs) for cell in code_cells(stored)] and any(kept)


@pytest.mark.release
def test_training_the_embedded_pair_runs(tmp_path):
    rehearsal = [str(tmp_path / "pair"), "--rehearsal"]
    out = run_python([str(ROOT / "examples" / TRAINING), *rehearsal], tmp_path)
    assert "Acceptance rate between target and draft model" in out
    assert all((tmp_path / "pair" / name / "model.safetensors").exists() for name in ("target", "draft", "head"))


def forked(folder: Path, arguments: list[str], run) -> str:
    """What `run()` prints in a process of its own, forked, since starting one anew takes seconds of imports."""
    out = folder / "output.txt"

    def child():
        with out.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        os.chdir(folder)
        torch.set_num_threads(1)  # a pool of threads does not survive a fork
        warnings.resetwarnings()
        warnings.filterwarnings("error", category=DeprecationWarning, module="hf_speculative")
        run()

    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, about pytest's own threads
        process.start()
    process.join(TIMEOUT)
    process.kill()
    process.join()
    assert process.exitcode == 0, out.read_text()
    return out.read_text()


def run_python(arguments: list[str], folder: Path) -> str:
    command = [sys.executable, "-W", "error::DeprecationWarning:hf_speculative", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return done.stdout
