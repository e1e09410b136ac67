"""Which values the fields of a request may have, said before anything is computed for it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

#: texts that end an answer: so many, of so many characters each
MOST_STOPS, LONGEST_STOP = 4, 256
#: characters of a prompt for each token that fits: more are refused unread
CHARACTERS_PER_TOKEN = 32
#: what logits can be divided by
LEAST_TEMPERATURE = 1e-4
#: parts of a message that any model reads
TEXT_PARTS = ("text", "input_text", "output_text")


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_stop(value: Any) -> bool:
    texts = stops_of({"stop": value})
    return len(texts) <= MOST_STOPS and all(isinstance(text, str) and 0 < len(text) <= LONGEST_STOP for text in texts)


def _is_bias(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_id(key) and _is_number(bias, -100, 100) for key, bias in value.items())


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 10


def _is_number(value: Any, least: float, most: float) -> bool:
    return is_finite(value) and least <= value <= most


#: fields, what they may hold, and how that is told
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, str), "give the name of the model"),
    "prompt": (lambda value: isinstance(value, str), "give one text"),
    "stream": (lambda value: isinstance(value, bool), "give true or false"),
    "temperature": (
        lambda value: is_finite(value) and (value == 0 or value >= LEAST_TEMPERATURE),
        f"give 0 for the likeliest tokens, or a finite number from {LEAST_TEMPERATURE:g} on",
    ),
    "top_p": (lambda value: is_finite(value) and 0 < value <= 1, "give a number above 0, up to 1"),
    # transformers' server makes a repetition penalty of it, 1 more, which has to be above 0
    "frequency_penalty": (lambda value: _is_number(value, -1, 2) and value > -1, "give a number above -1, up to 2"),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens"),
        (lambda value: is_whole(value) and value >= 1, "give a whole number, 1 or more"),
    ),
    "seed": (is_whole, "give a whole number"),
    "stop": (_is_stop, f"give at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"),
    "logit_bias": (_is_bias, "give numbers from -100 to 100 by ids of tokens"),
    "suffix": (lambda value: value == "", "this model does not fill in: leave it out"),
    "messages": (
        lambda value: isinstance(value, list) and all(isinstance(one, dict) and "role" in one for one in value),
        "give a list of messages, each with a `role`",
    ),
}
#: characters of a value that an error repeats
SHOWN = 80


def check_fields(body: dict[str, Any], most_characters: int, reads_text_alone: bool) -> None:
    """Refuse a request before it costs anything.

    Args:
        most_characters: of its prompt.
        reads_text_alone: the model takes no images or sounds.

    Raises:
        ValueError: naming the field, its value and the way out.
    """
    for name, (is_allowed, way_out) in FIELDS.items():
        value = body.get(name)
        if value is not None and not is_allowed(value):
            raise ValueError(f"`{name}={_shown(value)}`: {way_out}.")
    prompt = [body.get(name) for name in ("prompt", "messages", "input", "instructions")]
    for text in _texts(prompt):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(
                "the prompt holds half of a character, a surrogate without its other one: send valid Unicode."
            )
    num_characters = sum(map(len, _texts(prompt)))
    if num_characters > most_characters:
        raise ValueError(
            f"the prompt has {num_characters:,} characters, and more than {most_characters:,} cannot fit: shorten it."
        )
    if reads_text_alone:
        for kind in _kinds(prompt):
            if kind not in TEXT_PARTS:
                raise ValueError(
                    f"a message holds a part of type {kind!r}, and this model reads text alone: leave it out."
                )


def stops_of(body: dict[str, Any]) -> list[str]:
    """The texts that end an answer."""
    stop = body.get("stop")
    return [] if stop is None else stop if isinstance(stop, list) else [stop]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _kinds(prompt: list[Any]) -> Iterator[str]:
    """The types of all parts of messages."""
    for messages in prompt:
        for message in messages if isinstance(messages, list) else []:
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else []:
                if isinstance(part, dict):
                    yield str(part.get("type"))
