"""Make prompts of texts and messages, and of images and sounds by a processor."""

import copy
import inspect
import json
import re
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from ..models.inputs import TOKEN_TYPES
from .protocol import BadRequest, Message

#: types of text parts of a message
TEXT_PARTS = ("text", "input_text", "output_text")
#: others, and what they are to a processor
MEDIA_PARTS = {"image_url": "image", "input_image": "image", "video_url": "video"}
MEDIA_PARTS |= {"audio_url": "audio", "input_audio": "audio"}
#: addresses of images and sounds; files of this machine are refused
SOURCES = ("data:", "http://", "https://")
#: inputs that an engine takes; others go to `model.generate`
OF_TEXTS = {"input_ids", "attention_mask"} | TOKEN_TYPES
#: keywords that clients may not set: parameters of `apply_chat_template`, and those it passes on itself
OWN = {"messages", "conversations", "generation_indices"}.union(
    *(inspect.signature(kind.apply_chat_template).parameters for kind in (PreTrainedTokenizerBase, ProcessorMixin))
)


class Prompt(NamedTuple):
    """Ids of a prompt, and further inputs of the model where it is more than text: images, recordings."""

    ids: list[int]
    media: dict[str, Any] = {}  # noqa: RUF012  # never written to


def variables_of(found: dict[str, Any] | None, processor) -> dict[str, Any]:
    """Check a client's variables of the chat template.

    Raises:
        BadRequest: one is a parameter of the function that renders the template.
    """
    found = found or {}
    own = OWN.union(inspect.signature(processor.__call__).parameters)
    if wrong := [name for name in found if name in own]:
        raise BadRequest(f"`chat_template_kwargs` holds {wrong[0]!r}: leave it out.", "chat_template_kwargs")
    if isinstance(processor, PreTrainedTokenizerBase):
        return dict(found)
    # A processor would take variables that are not in the template as its own parameters.
    template = str(processor.chat_template)
    return {name: value for name, value in found.items() if re.search(rf"\b{re.escape(name)}\b", template)}


def of_messages(messages: list[Message], processor, tools: list[dict] | None, **keywords) -> Prompt:
    """Render messages by the chat template.

    Raises:
        BadRequest: there is no template, it fails, or the model does not read a part's type.
    """
    if not getattr(processor, "chat_template", None):
        raise BadRequest("this model has no chat template for messages: ask for the completion of a text.")
    reads_text_alone = isinstance(processor, PreTrainedTokenizerBase)
    turns = [_turn(message, reads_text_alone) for message in messages]
    keywords = {"add_generation_prompt": True} | keywords | {"tokenize": True, "return_dict": True}
    try:
        inputs = processor.apply_chat_template(turns, tools=tools, return_tensors="pt", **keywords)
    except Exception as error:  # templates and processors raise anything
        why = str(error) if isinstance(error, (TemplateError, ValueError)) else type(error).__name__
        raise BadRequest(f"the chat template cannot be filled in: {why}", "messages") from error
    ids = inputs["input_ids"][0].tolist()
    if set(inputs) <= OF_TEXTS:
        return Prompt(ids)
    return Prompt(ids, {name: inputs[name] for name in inputs if name not in ("input_ids", "attention_mask")})


def _turn(message: Message, reads_text_alone: bool) -> dict[str, Any]:
    turn = message.model_dump(include={"role", "name", "tool_call_id", "reasoning_content"}, exclude_none=True)
    if message.role == "developer":
        turn["role"] = "system"
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    content = message.content or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not reads_text_alone:
        turn["content"] = [_part(part) for part in parts]
        return turn
    if other := [kind for part in parts if (kind := part.get("type")) not in TEXT_PARTS]:
        raise BadRequest(f"a part is of type {other[0]!r}, and this model reads text alone: leave it out.", "messages")
    turn["content"] = " ".join(_part(part)["text"] for part in parts)
    return turn


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Parse a call's arguments, a text in the API, to the object that templates read."""
    call = copy.deepcopy(call)
    function = call.get("function")
    if not isinstance(function, dict) or "name" not in function:
        raise BadRequest("a message's tool call names no function.", "messages")
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            raise BadRequest("a message's tool call has arguments that are no JSON.", "messages") from None
    return call


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    value = part.get("text" if kind in TEXT_PARTS else "image_url" if kind == "input_image" else str(kind))
    if isinstance(value, dict):
        data, form = value.get("data"), value.get("format")
        value = f"data:audio/{form or 'wav'};base64,{data}" if kind == "input_audio" and data else value.get("url")
    if not isinstance(value, str):
        raise BadRequest(f"a message holds a part of type {kind!r} that cannot be read.", "messages")
    if kind in TEXT_PARTS:
        return {"type": "text", "text": value}
    if kind not in MEDIA_PARTS:
        raise BadRequest(f"a message holds a part of type {kind!r}, which no model here reads.", "messages")
    if not value.startswith(SOURCES):
        raise BadRequest(f"a part of type {kind!r} is given as a `data:` or `http(s)://` address.", "messages")
    return {"type": MEDIA_PARTS[kind], "url": value}
