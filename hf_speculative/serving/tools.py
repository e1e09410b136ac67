"""Tools: grammars of calls, and parsers that find calls in answers."""

import json
import re
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import regex

from ..hf_compat import response_parser
from .protocol import BadRequest, Tool, WithTools

OPEN, CLOSE, THINK = "<tool_call>", "</tool_call>", "<think>"
#: the format of calls and thoughts of Hermes and of models like it, Qwen 2 and 3 among them
HERMES: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": THINK, "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": rf"\s*{OPEN}",
            "close": CLOSE,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
    },
}
#: a text that ends with the tag of a call, and a text without the tag
FREE = rf"""
opened[lazy]: /(?s:.*){OPEN}/
free: FREE
FREE: ~/(?s:.*){OPEN}(?s:.*)/
"""
#: white space as `json.dumps` writes it: flexible white space might never end
COMPACT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}
REASONING = ("reasoning_content", "reasoning", "thinking")


def must_call(body: WithTools) -> bool:
    """Whether the answer has to be a call and nothing else."""
    return body.tool_choice == "required" or isinstance(body.tool_choice, Tool)


def grammar_of(body: WithTools, has_tags: bool) -> Any:
    """The grammar of an answer with tools; `None`: any text.

    Args:
        has_tags: the model's template writes calls between tags; otherwise a call is bare JSON.

    Raises:
        BadRequest: the chosen tool does not exist, or the template has no format for strict tools.
    """
    choice, tools = body.tool_choice, [tool.function for tool in body.tools or []]
    if isinstance(choice, Tool):
        tools = [tool for tool in tools if tool.name == choice.function.name]
    if must_call(body) and not tools:
        raise BadRequest(f"`tool_choice` needs a tool that is not among `tools`: {choice!r}.", "tool_choice")
    is_kept_to = body.parallel_tool_calls is False or any(tool.strict for tool in tools)
    if choice == "none" or not tools or not (must_call(body) or is_kept_to):
        return None
    rules = f"tool: {' | '.join(f'tool_{nth}' for nth in range(len(tools)))}\n"
    for nth, tool in enumerate(tools):  # each schema has a rule of its own, so that its pointers begin at its own root
        begin = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        schema = (tool.parameters or {"type": "object"}) | {"x-guidance": COMPACT}
        rules += f'tool_{nth}: {begin} json_{nth} "}}"\njson_{nth}: %json {json.dumps(schema)}\n'
    if not has_tags:
        if must_call(body):
            return f"start: tool\n{rules}"
        raise BadRequest("`strict` tools need `tool_choice`: this model's template has no form for calls.", "tools")
    call = f'call: "\\n" tool "\\n{CLOSE}"\n{rules}'
    if must_call(body):
        return f'start: "{OPEN}" call\n{call}'
    return f"start: (opened call){'?' if body.parallel_tool_calls is False else '*'} free{FREE}{call}"


def tool_call(name: str, arguments: Any) -> dict[str, Any]:
    """A call in the format of answers."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": {"name": name, "arguments": text}}


class PlainText:
    """Parse a text as content alone."""

    keeps_specials = False

    def feed(self, text: str) -> list[tuple[str, Any]]:
        """Parse more text; return new parts: "content", "reasoning_content" or "tool_calls", and their values."""
        return [("content", text)] if text else []

    def end(self) -> list[tuple[str, Any]]:
        return []


class OneCall(PlainText):
    """Parse a text that a grammar made a call; a call that was cut off becomes content."""

    text = ""

    def feed(self, text: str) -> list[tuple[str, Any]]:
        self.text += text
        return []

    def end(self) -> list[tuple[str, Any]]:
        try:
            found = json.loads(self.text.strip().removeprefix(OPEN).removesuffix(CLOSE))
            return [("tool_calls", tool_call(found["name"], found["arguments"]))]
        except (ValueError, KeyError, TypeError):
            return super().feed(self.text)


def begun(template: dict[str, Any], prompt: str) -> str:
    """The beginning of the answer at the end of a prompt, without its messages, which may hold thoughts and calls as well."""
    if template is HERMES:  # other templates with the same tags lack its anchor
        return template["start_anchor"] + THINK if prompt.rstrip().endswith(THINK) else ""
    literal = template.get("start_anchor") or []
    literals = [literal] if isinstance(literal, str) else literal
    pattern = template.get("start_anchor_pattern") or "|".join(map(re.escape, literals))
    starts = [match.start() for match in regex.finditer(pattern, prompt)]
    return prompt[starts[-1] :] if starts else ""


class Parsed(PlainText):
    """Parse a text in the format of a response template.

    Args:
        template: of the tokenizer, or `HERMES`.
        begun: the beginning of the answer in the prompt.
    """

    def __init__(self, template: dict[str, Any], begun: str, tools: list[dict] | None):
        self.keeps_specials = template is not HERMES
        self.parser = response_parser(template, begun, tools)
        self.begun = self._parts(self.parser.initial_events)
        of_calls = template["fields"].get("tool_calls", {})
        literal = of_calls.get("open")
        self.opens = of_calls.get("open_pattern") or (re.escape(literal) if isinstance(literal, str) else None)
        #: the text since the last thought or call ended, with the current call
        self.recent, self.is_broken = "", False

    def feed(self, text: str) -> list[tuple[str, Any]]:
        parts, self.begun = self.begun, []
        for piece in re.split("(?<=>)", text):  # pieces end with tags, so that the start of a call is known
            self.recent += piece
            parts += super().feed(piece) if self.is_broken else self._read(partial(self.parser.feed, piece))
        return parts

    def end(self) -> list[tuple[str, Any]]:
        parts, self.begun = self.begun, []
        return parts if self.is_broken else parts + self._read(lambda: self.parser.finalize()[1])

    def _read(self, parse: Callable[[], list[dict]]) -> list[tuple[str, Any]]:
        """Parts of what the parser finds next; from a call that it cannot read on, all is text."""
        try:
            events = parse()
            parts = self._parts(events)
        except (ValueError, KeyError, TypeError):
            self.is_broken = True
            found = regex.search(self.opens, self.recent) if self.opens else None
            return super().feed(self.recent[found.start() if found else 0 :])
        tags = {(event["type"], event.get("field")) for event in events} - {("region_open", "tool_calls")}
        if any(kind != "region_chunk" and field != "content" for kind, field in tags):
            self.recent = ""
        return parts

    @staticmethod
    def _parts(events: list[dict]) -> list[tuple[str, Any]]:
        parts: list[tuple[str, Any]] = []
        for event in events:
            field = "reasoning_content" if event.get("field") in REASONING else event.get("field")
            if event["type"] == "region_chunk" and not event.get("dirty") and event.get("text"):
                if field in ("content", "reasoning_content"):
                    parts.append((field, event["text"]))
            elif event["type"] == "region_close" and field == "tool_calls":
                found = event["value"]["function"]
                parts.append(("tool_calls", tool_call(found["name"], found.get("arguments", {}))))
        return parts
