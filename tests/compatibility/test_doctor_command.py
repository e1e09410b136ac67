"""`hf-speculative check` of a good head and a shifted one; docs/draft-heads.md shows what it says of them."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

from hf_speculative.cli import app
from hf_speculative.compatibility import answer, doctor, running
from tests.support import fitted, tiny, tongues

LETTERS = "".join(map(chr, range(0x41, 0x41 + tiny.VOCAB)))
#: in letters, a token each
PROMPTS = ["".join(LETTERS[i] for i in (5 + 3 * i, 9, 3 + 2 * i)) for i in range(12)]
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The target with its tokenizer, its own head, and the same with other indices in its config."""
    folder = tmp_path_factory.mktemp("pairs")
    with torch.random.fork_rng():
        target = fitted.target()
        head = fitted.head_for(target, [[LETTERS.index(letter) for letter in prompt] for prompt in PROMPTS])
    target.save_pretrained(folder / "target")
    tongues.characters(LETTERS).save_pretrained(folder / "target")
    head.save_pretrained(folder / "good-head")
    shutil.copytree(folder / "good-head", folder / "shifted-head")
    path = folder / "shifted-head" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {IDS: [index + 1 for index in fitted.LAYERS]}))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return folder


def verdict(folder, name, monkeypatch):
    """The last line that the command prints about a head."""
    monkeypatch.setattr(running, "NUM_DRAFT_TOKENS", 1)  # see test_doctor.py
    monkeypatch.setattr(doctor, "POOR", 0.9)
    monkeypatch.setattr(answer, "candidates", lambda target: [])
    monkeypatch.setattr(running, "MOST_BATCHES", 12)
    for length in ("SHORTEST_CALL", "LONGEST_CALL"):
        monkeypatch.setattr(running, length, 7)
    args = [str(folder / "target"), str(folder / name), "--prompts", str(folder / "prompts.jsonl")]
    result = CliRunner().invoke(app, ["check", *args, "--seconds", "1000", "--batch", "1"], env={"COLUMNS": "2000"})
    assert result.exit_code == 0, result.output
    return result.stdout.strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good-head", "shifted-head"])
def test_what_is_said_of_a_head(name, folder, monkeypatch):
    said = verdict(folder, name, monkeypatch)
    if name == "good-head":
        assert "Read as its config says" not in said
    else:
        assert f"with {IDS}={fitted.LAYERS}: the config is wrong" in said
    assert f'"{name}, ' in said
