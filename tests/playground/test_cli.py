"""`hf-speculative playground`, and the Space in examples/."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from hf_speculative.playground import cli
from tests.support.command import run_command

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "examples" / "playground_space"


def shown(*args):
    result = run_command("playground", *args, columns=200)
    assert "Traceback" not in result.output
    return result


def test_without_gradio_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "hf_speculative.playground.page", raising=False)
    result = shown()
    assert result.exit_code == 2 and "needs gradio: pip install 'hf_speculative[playground]'" in result.stderr


@pytest.mark.parametrize("host, warns", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_it_listens_on_this_machine(host, warns, monkeypatch):
    gradio = pytest.importorskip("gradio", reason="the extra `playground` is not installed")
    launched = {}
    monkeypatch.setattr(gradio.Blocks, "launch", lambda self, **options: launched.update(options))

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_wait", stop)
    result = shown("--host", host)
    assert launched["server_name"] == host and launched["share"] is False and launched["ssr_mode"] is False
    assert ("other machines" in result.stderr) == warns and result.exit_code == 130


def test_the_space_builds_its_page(monkeypatch):
    gradio = pytest.importorskip("gradio", reason="the extra `playground` is not installed")
    for name in ("MODEL", "DRAFT_MODEL", "METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    found = runpy.run_path(str(SPACE / "app.py"))
    assert isinstance(found["demo"], gradio.Blocks) and found["models"].draft is not None


def test_the_spaces_front_matter_is_what_spaces_read():
    _, front, _ = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["sdk"] == "gradio" and (SPACE / values["app_file"]).exists()
    (pinned,) = re.findall(r"^gradio==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert values["sdk_version"] == pinned and len(values["short_description"]) <= 60
    assert (SPACE / "requirements.txt").read_text() == "hf_speculative[playground]\n"
