"""Models with a chat template are spoken to in it: prompts are what a user says, rows may be messages."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from hf_speculative.cli import app
from hf_speculative.embedded import FOLDER
from hf_speculative.measuring.rows import BadRow, read_prompts

TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}def {% endif %}"
)
MESSAGES = [{"role": "user", "content": "area of a square"}]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """The embedded target with a chat template."""
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(FOLDER / "target", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": one}) for one in (MESSAGES, "a text", [], [{"role": "user"}])))
    return path


def invoke(*args):
    result = CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result


def test_rows_are_texts_or_messages(rows):
    messages, text, *bad = read_prompts(rows)
    assert messages == MESSAGES and text == "a text"
    assert [type(one) for one in bad] == [BadRow, BadRow] and "neither a text nor messages" in bad[0].message


def test_generate_answers_in_the_template_and_continues_raw(chatty):
    command = ("generate", "area of a square", "--model", chatty, "--max-new-tokens", 8, "--repeats", 1, "--json")
    answer, raw = (json.loads(invoke(*command, *more).stdout.splitlines()[0])["text"] for more in ((), ("--raw",)))
    assert answer != raw
    rendered = "# user: area of a square\ndef "
    in_full = ("generate", rendered, *command[2:], "--raw")
    assert json.loads(invoke(*in_full).stdout.splitlines()[0])["text"] == answer


def test_files_of_messages(chatty, rows):
    few = ("--max-new-tokens", 6, "--repeats", 1, "--json")
    result = invoke("generate", "--prompts", rows, "--model", chatty, *few)
    assert len(result.stdout.splitlines()) == 3 and result.stderr.count("skipped") == 2
    result = invoke("check", chatty, "--prompts", rows, "--seconds", 0.5, "--batch", 1, "--json")
    assert json.loads(result.stdout)["is_compatible"] and "skipped row 2" in result.stderr
