"""Thoughts and calls in what a model says, found as it comes."""

import pytest

from hf_speculative.serving import tools


def test_thoughts_and_calls_are_found_as_they_come():
    parser = tools.Parsed(tools.HERMES, "<|im_start|>assistant\n<think>\n", None)
    pieces = ["so ", "hm</thi", "nk>\n\nhi ", "<tool_", 'call>\n{"name": "f", "argu', 'ments": {"x": 1}}\n</tool_call>']
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.end()
    texts = {kind: "".join(v for k, v in parts if k == kind) for kind in ("content", "reasoning_content")}
    assert texts["reasoning_content"].strip() == "so hm" and texts["content"].strip() == "hi"
    (call,) = [value for kind, value in parts if kind == "tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize(
    "inside", ["not json", '{"a": 1}', "[1]", '{"name": "f", "argu', f'{{"name": "f", "a": "{tools.OPEN}", "argu']
)
@pytest.mark.parametrize("cut", ["whole", "characters", "before", "within"])
def test_a_call_that_cannot_be_read_is_text(cut, inside):
    close = "" if inside.endswith("argu") else f"{tools.CLOSE} then > {tools.OPEN}[]{tools.CLOSE}."
    text = f"so \n{tools.OPEN}{inside}{close}"
    whole = {"whole": [text], "characters": list(text)}
    pieces = whole.get(cut) or [text[: (at := text.index(tools.OPEN) + (0 if cut == "before" else 6))], text[at:]]
    parser = tools.Parsed(tools.HERMES, "", None)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.end()
    assert {kind for kind, _ in parts} == {"content"} and "".join(value for _, value in parts) == text


def test_a_tag_in_a_thought_is_none():
    parser = tools.Parsed(tools.HERMES, "", None)
    parts = parser.feed(f"<think>a {tools.OPEN} b</think>c") + parser.end()
    texts = {kind: "".join(v for k, v in parts if k == kind) for kind in ("content", "reasoning_content")}
    assert texts == {"content": "c", "reasoning_content": f"a {tools.OPEN} b"}


BEGINS = {"start_anchor_pattern": "<a(nswer)?>", "fields": {"content": {"content": "text"}}}


@pytest.mark.parametrize(
    ("template", "prompt", "kind", "begun"),
    [
        (tools.HERMES, "SECRET <tool_call>[</tool_call> hello [/INST]", "content", ""),
        (tools.HERMES, "<|im_start|>assistant\nold<|im_end|>\n<|im_start|>user\nSECRET", "content", ""),
        (tools.HERMES, "SECRET <think>\n", "reasoning_content", ""),
        (BEGINS, "SECRET", "content", ""),
        (BEGINS, "<answer>SECRET<a>yes ", "content", "yes "),
    ],
)
def test_an_answer_begins_where_its_prompt_ends(template, prompt, kind, begun):
    parser = tools.Parsed(template, tools.begun(template, prompt), None)
    parts = parser.feed("hi") + parser.end()
    assert {name for name, _ in parts} == {kind} and "".join(value for _, value in parts) == begun + "hi"
