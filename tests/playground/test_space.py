"""The Space in examples/: it builds its page, and its files say what holds."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "examples" / "playground_space"


def test_it_builds_its_page(monkeypatch):
    gradio = pytest.importorskip("gradio", reason="the extra `playground` is not installed")
    for name in ("MODEL", "DRAFT_MODEL", "METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    found = runpy.run_path(str(SPACE / "app.py"))
    assert isinstance(found["demo"], gradio.Blocks) and found["models"].draft is not None


def test_its_front_matter_is_what_spaces_read():
    _, front, _ = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["sdk"] == "gradio" and (SPACE / values["app_file"]).exists()
    (pinned,) = re.findall(r"^gradio==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert values["sdk_version"] == pinned and len(values["short_description"]) <= 60
    assert (SPACE / "requirements.txt").read_text() == "hf_speculative[playground]\n"
