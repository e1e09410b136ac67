"""Models with a chat template are spoken to in it: prompts are what a user says, rows may be messages."""

import json
import re
import shutil

import pytest

import hf_speculative as hs
from hf_speculative.embedded import FOLDER
from hf_speculative.measuring import Evaluation, plan
from hf_speculative.measuring.bench import prompts
from hf_speculative.measuring.rows import BadRow, read_prompts
from hf_speculative.tokenizers.chat import around_a_turn, chat_keywords, end_tokens
from tests.support.command import run_command, write_prompts
from tests.support.evaluations import TEMPLATE

MESSAGES = [{"role": "user", "content": "area of a square"}]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(FOLDER / "target", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": one}) for one in (MESSAGES, "a text", [], [{"role": "user"}])))
    return path


def chat_tokenizer(template=TEMPLATE):
    tokenizer = hs.embedded_pair()[2]
    tokenizer.chat_template = template
    return tokenizer


def invoke(*args):
    result = run_command(*args, columns=200)
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


@pytest.mark.slow
def test_files_of_messages(chatty, rows):
    result = invoke("check", chatty, "--prompts", rows, "--seconds", 0.1, "--batch", 1, "--json")
    assert json.loads(result.stdout)["is_compatible"] and "skipped row 2" in result.stderr


def test_texts_of_a_data_set_are_said_unless_raw(chatty, tmp_path):
    path = write_prompts(tmp_path / "p.jsonl", ['{"prompt": "area of a square"}'])
    command = ("eval", "--dataset", path, "--model", chatty, "--draft-model", "suffix", "--max-new-tokens", 6)
    for more, rendered in (((), "# user: area of a square\ndef "), (("--raw",), "area of a square")):
        results = tmp_path / f"{len(more)}.jsonl"
        invoke(*command, "--num-draft-tokens", 2, "--results", results, *more)
        evaluation = Evaluation.load(results)
        (plain,) = evaluation.rows(evaluation.settings[0]).values()
        assert plain.prompt == rendered and evaluation.header["is_chat"] == (not more)


def test_a_benchmark_asks_about_its_text_in_prompts_of_one_length():
    tokenizer = chat_tokenizer()
    asked, raw = (prompts(tokenizer, 2, 64, one) for one in (False, True))
    assert {len(ids) for ids in (*asked, *raw)} == {64}
    text = tokenizer.decode(asked[0])
    assert text.startswith("# user: Explain what this Python code does:") and text.endswith("\ndef ")
    assert "Explain" not in tokenizer.decode(raw[0])
    with pytest.raises(ValueError, match="`context=8`: the chat template and a question take"):
        prompts(tokenizer, 1, 8)


def test_an_answer_ends_where_the_template_ends_one():
    target, _, _ = hs.embedded_pair()
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>\n{% endfor %}")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    (end,) = tokenizer("<|end|>", add_special_tokens=False).input_ids
    own = target.generation_config.eos_token_id
    assert end_tokens(target, tokenizer) == [*([own] if isinstance(own, int) else own or []), end]
    assert chat_keywords(target, tokenizer, raw=False)["eos_token_id"][-1] == end
    assert chat_keywords(target, tokenizer, raw=True) == {} == chat_keywords(target, hs.embedded_pair()[2], raw=False)


def test_templates_without_users_are_refused():
    with pytest.raises(ValueError, match="takes no message of a user"):
        around_a_turn(chat_tokenizer("{{ raise_exception('no user') }}"))
    with pytest.raises(ValueError, match="does not show what a user says"):
        around_a_turn(chat_tokenizer("hello"))


def test_few_tokens_make_no_figure(chatty, monkeypatch):
    """Of fewer than 20 new tokens here: a dash and the reason; null in JSON; no recommendation."""
    monkeypatch.setattr(plan, "FEWEST_TOKENS", 20)
    command = ("generate", "area of a square", "--model", chatty, "--max-new-tokens", 8, "--repeats", 2)
    shown = invoke(*command).stdout
    assert re.search(r"auto.* \u2013", shown) and "a figure needs 20 new tokens or more" in shown
    assert "take " not in shown and not re.search(r"\d\.\d\dx", shown)
    total = json.loads(invoke(*command, "--json").stdout.splitlines()[-1])["total"]
    assert total["num_new_tokens"] <= 16
    assert total["speedup"] is None is total["tokens_per_second"] is total["statistics"]["mean_acceptance_length"]
    enough = invoke(*command[:-3], 40, "--repeats", 2).stdout
    assert "a figure needs" not in enough and re.search(r"\d\.\d\dx|noise", enough)
