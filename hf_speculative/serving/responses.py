"""The endpoint `/v1/responses`: turn its requests into messages, and answers into items."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from transformers import PreTrainedTokenizerBase

from .answers import metrics_of, sse, usage_of
from .protocol import Checked, Choice, Message, ResponseFormat, Text, Tool, WithTools
from .replies import Event, Part, Reply


def nested_under(name: str, key: str) -> BeforeValidator:
    """Convert objects with `key` to the form of chat completions: all but their type in an object of its own, `name`."""

    def convert(value: Any) -> Any:
        if isinstance(value, list):
            return [convert(one) for one in value]
        if isinstance(value, dict) and "type" in value and key in value:
            return {"type": value["type"], name: {field: one for field, one in value.items() if field != "type"}}
        return value

    return BeforeValidator(convert)


class TextSettings(Checked):
    format: Annotated[ResponseFormat, nested_under("json_schema", "schema")] | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Checked):
    effort: Text | None = None
    summary: None = None


class Responses(WithTools):
    """A request. The server keeps no state: clients send the whole conversation."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[Tool], nested_under("function", "name")] | None = None
    tool_choice: Annotated[Choice, nested_under("function", "name")] = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[str], Field(max_length=0)] | None = None
    background: Literal[False] | None = None
    n: Literal[1] | None = None
    messages: list[Message] = Field(default=[], max_length=0, exclude=True)  # those of `input`

    @model_validator(mode="after")
    def _as_chat(self) -> "Responses":
        if self.max_tokens is not None:
            raise ValueError("`max_tokens`: this endpoint calls it `max_output_tokens`")
        self.max_tokens = self.max_output_tokens
        self.messages = [Message.model_validate(one) for one in _messages(self.input, self.instructions)]
        return self

    @property
    def response_format(self) -> ResponseFormat | None:
        return self.text.format if self.text else None

    @property
    def reasoning_effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning else None


def _messages(found: str | list[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """Messages of chat completions. Items of the assistant that follow each other are one turn, up to its text."""
    turns: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(found, str) or not all("role" in one or one.get("type") in ITEMS for one in found):
        return [*turns, {"role": "user", "content": found}]
    for message in map(_message, found):
        last = turns[-1] if turns else {}
        is_assistants = last.get("role") == message["role"] == "assistant"
        if is_assistants and ("tool_calls" in message or "content" not in last):
            calls = last.get("tool_calls", []) + message.get("tool_calls", [])
            last |= message | ({"tool_calls": calls} if calls else {})
        else:
            turns.append(message)
    return turns


def _message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "reasoning":
        parts = content if isinstance(content := item.get("content") or [], list) else [content]
        texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("`input` holds reasoning whose `content` is no list of texts")
        return {"role": "assistant", "reasoning_content": "".join(texts)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    return {"role": item.get("role"), "content": item.get("content")}


#: types of items beside messages
ITEMS = ("reasoning", "function_call", "function_call_output")
#: of items with text: fields beside those that all have, and their one part
WITH_TEXT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "message": ({"role": "assistant"}, {"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
    "reasoning": ({"summary": []}, {"type": "reasoning_text", "text": ""}),
}


class ResponseAnswer:
    """The items of an answer, and the events of its stream."""

    def __init__(self, body: Responses, model: str, tokenizer: PreTrainedTokenizerBase):
        self.body, self.model = body, model
        self.id, self.created, self.num_events = f"resp_{uuid.uuid4().hex}", time.time(), 0
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None

    def add(self, event: Event) -> None:
        list(self._events(event.parts))

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        list(self._close())
        return self._response(replies)

    def begin(self, replies: Sequence[Reply]) -> str:
        empty = self._response([], "in_progress")
        return self._event("response.created", response=empty) + self._event("response.in_progress", response=empty)

    def chunks(self, event: Event, replies: Sequence[Reply], is_last: bool) -> Iterator[str]:
        yield from self._events(event.parts)
        if event.is_end:
            yield from self._close()
            response = self._response(replies)
            yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: dict[str, Any]) -> str:
        told = {"code": "server_error", "message": error["error"]["message"]}
        return self._event("response.failed", response=self._response([], "failed") | {"error": told})

    def _response(self, replies: Sequence[Reply], status: str | None = None) -> dict[str, Any]:
        body, is_cut = self.body, bool(replies) and replies[0].finish_reason == "length"
        choice, empty = body.tool_choice, {"type": "function", "strict": None, "parameters": None}
        response: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status or ("incomplete" if is_cut else "completed"),
            "model": self.model,
            "output": list(self.items),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": choice or "auto",
            "tools": [empty | tool.function.model_dump() for tool in body.tools or []],
        }
        response |= body.model_dump(include={"instructions", "temperature", "top_p", "max_output_tokens"})
        if isinstance(choice, Tool):
            response["tool_choice"] = {"type": "function", "name": choice.function.name}
        if replies:
            response |= {"usage": usage_of(replies, "input", "output")} | metrics_of(replies)
        return response

    # ---- events

    def _event(self, kind: str, **fields: Any) -> str:
        event = {"type": kind, "sequence_number": self.num_events} | fields
        self.num_events += 1
        return f"event: {kind}\n{sse(event)}"

    def _events(self, parts: Sequence[Part]) -> Iterator[str]:
        for kind, value in parts:
            if kind == "tool_calls":
                yield from self._close()
                yield from self._call(value)
                continue
            wanted = "reasoning" if kind == "reasoning_content" else "message"
            if self.open is None or self.open["type"] != wanted:
                yield from self._close()
                yield from self._open(wanted)
            self.items[-1]["content"][0]["text"] += value
            yield self._of_text("delta", delta=value)

    def _open(self, kind: str) -> Iterator[str]:
        more, part = WITH_TEXT[kind]
        item = {"id": f"{kind[:3]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", "content": [], **more}
        yield self._added(item)
        self.items[-1] = self.open = item | {"content": [dict(part)]}
        yield self._of_item("response.content_part.added", content_index=0, part=part)

    def _close(self) -> Iterator[str]:
        item, self.open = self.open, None
        if item is None:
            return
        item["status"], part = "completed", item["content"][0]
        yield self._of_text("done", text=part["text"])
        yield self._of_item("response.content_part.done", content_index=0, part=part)
        yield self._done()

    def _call(self, call: dict[str, Any]) -> Iterator[str]:
        item = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": call["id"], **call["function"]}
        yield self._added(item | {"arguments": "", "status": "in_progress"})
        self.items[-1] = item | {"status": "completed"}
        text = item["arguments"]
        yield self._of_item("response.function_call_arguments.delta", delta=text)
        yield self._of_item("response.function_call_arguments.done", arguments=text, name=item["name"])
        yield self._done()

    def _added(self, item: dict[str, Any]) -> str:
        self.items.append(item)
        return self._event("response.output_item.added", output_index=len(self.items) - 1, item=item)

    def _done(self) -> str:
        return self._event("response.output_item.done", output_index=len(self.items) - 1, item=self.items[-1])

    def _of_item(self, kind: str, **fields: Any) -> str:
        """An event inside the last item."""
        return self._event(kind, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)

    def _of_text(self, kind: str, **fields: Any) -> str:
        """An event of the text of the last item."""
        name = self.items[-1]["content"][0]["type"]
        more: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
        return self._of_item(f"response.{name}.{kind}", content_index=0, **fields, **more)
