"""`hf-speculative playground`."""

import sys

import pytest
from typer.testing import CliRunner

from hf_speculative.cli import app
from hf_speculative.playground import cli


def shown(*args):
    result = CliRunner().invoke(app, ["playground", *args], env={"COLUMNS": "200"})
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
