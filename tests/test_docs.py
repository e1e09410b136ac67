"""README, docs and examples say what is true: their code runs, their links lead somewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAINING = "train_embedded_pair.py"
#: run by a test of its own: the slow one here, the other in test_ray.py
RUN_ELSEWHERE = (TRAINING, "ray_batch_inference.py")


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


CODE = [page for page in PAGES if blocks(page)]
#: one process a page, since it takes seconds to start; each block has names of its own
RUN_EACH = "import json, sys\nfor block in json.loads(sys.argv[1]): exec(block, {'__name__': '__main__'})"


def test_there_is_code_to_run():
    assert {page.name for page in CODE} >= {"README.md", "add-a-drafter.md", "add-a-rule.md", "correctness.md"}


@pytest.mark.parametrize("page", CODE, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path):
    run_python(["-c", RUN_EACH, json.dumps(blocks(page))], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_files_named_in_the_docs_exist():
    named = set()
    for page in PAGES:
        named |= set(re.findall(r"`((?:tests|examples|docs|hf_speculative)/[\w./-]*\w\.(?:py|md))`", page.read_text()))
    assert named and not {name for name in named if not (ROOT / name).exists()}


ARGUMENTS = {
    "quality_unchanged.py": ["--limit", "2", "--max-new-tokens", "8"],
    "compare_batching.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "2"],
    "compare_encoder_decoder.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "1"],
    "compare_tokenizers.py": ["--max-new-tokens", "8", "--repeats", "1"],
    "compare_with_assisted.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "1", "--batch-size", "2"],
    "evaluate_with_trainer.py": ["--max-new-tokens", "8", "--repeats", "1", "--batch-size", "2", "--num-batches", "1"],
    "train_with_generation.py": ["--steps", "2", "--num-samples", "2", "--max-new-tokens", "8"],
}


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.name not in RUN_ELSEWHERE], ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    assert run_python([str(path), *ARGUMENTS.get(path.name, [])], tmp_path).strip()


@pytest.mark.slow
def test_training_the_embedded_pair_runs(tmp_path):
    out = run_python([str(ROOT / "examples" / TRAINING), str(tmp_path / "pair"), "--minutes", "0.2"], tmp_path)
    assert "Acceptance rate between them" in out and (tmp_path / "pair" / "draft" / "model.safetensors").exists()


def run_python(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:hf_speculative", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
