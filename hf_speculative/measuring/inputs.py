"""Read what an evaluation needs of a data set: prompts, categories, references of a score.

A score shows on the user's references that speculation does not change quality. It is a function of the lists `predictions` and
`references` that returns a number or a dict of numbers, or an object with `compute(predictions=, references=)`, as in the
library `evaluate`.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pkgutil import resolve_name
from typing import Any

from ..call.prompts import prompt_ids
from ..tokenizers.chat import as_chat, speaks_chat
from .journal import BadRow, Row
from .results import Evaluation
from .rows import Reader, reader


@dataclass
class Prompts:
    """The usable prompts by index in the data set. Later turns of conversations have indices behind all rows.

    Attributes:
        ids: of each prompt; of a later turn, once the turns before it are answered.
        said: the user's message at each turn of a conversation with several.
        before: for each later turn, the index of the turn before.
        make: makes the ids of a conversation, given its messages and the index of the turn.
    """

    ids: dict[int, list[int]] = field(default_factory=dict)
    bad_rows: list[BadRow] = field(default_factory=list)
    said: dict[int, str] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    make: Callable[[Any, int], list[int]] | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([*self.ids.items(), *self.said.items()]).encode()).hexdigest()[:16]

    def groups(self, size: int) -> list[list[list[int]]]:
        """Group prompts by `size`, conversations with others of as many turns. A group is a list of turns, each of indices."""
        after = {before: index for index, before in self.before.items()}
        waiting: dict[int, list[list[int]]] = {}
        found = []
        for index in self.ids:
            turns = [index]
            while turns[-1] in after:
                turns.append(after[turns[-1]])
            alike = waiting.setdefault(len(turns), [])
            alike.append(turns)
            if len(alike) == size:
                found.append(waiting.pop(len(turns)))
        return [[list(turn) for turn in zip(*group, strict=True)] for group in (*found, *waiting.values())]

    def ask(self, index: int, answers: Mapping[int, str]) -> None:
        """Make the ids of a later turn.

        Args:
            answers: to earlier turns, by index.

        Raises:
            ValueError, TypeError: an earlier turn has none, or the conversation gets too long.
        """
        if index not in self.ids and self.make is not None:
            if self.before[index] not in answers:
                raise ValueError("the turn before it could not be used")
            self.ids[index] = self.make(self._messages(index, answers), index)

    def _messages(self, index: int, answers: Mapping[int, str]) -> list[dict[str, str]]:
        asked = {"role": "user", "content": self.said[index]}
        if (before := self.before.get(index)) is None:
            return [asked]
        return [*self._messages(before, answers), {"role": "assistant", "content": answers[before]}, asked]

    def read(self, rows: list, how: Reader, option: str, take: Callable[[Any], Any]) -> dict[int, Any]:
        """Read something beside each prompt, by index; a row without it becomes a bad row, and its prompt is left out.

        Args:
            option: the keyword that `how` was given by: several of what is read.
            take: makes of each what is returned; a ValueError says what is wrong with it.

        Raises:
            ValueError: no row has it.
        """
        read, what, found = reader(how, rows, option), option.removesuffix("s"), {}
        for index in list(self.ids):
            try:
                found[index] = take(read_row(read, rows[index]))
            except ValueError as error:
                self.bad_rows.append(BadRow(index, f"its {what}: {error}"))
                del self.ids[index]
        self.check(f"`{option}` finds no {what}")
        return found

    def check(self, problem: str = "no row of `dataset` can be used") -> None:
        """Refuse a data set of bad rows alone."""
        if not self.ids:
            bad = self.bad_rows[0]
            raise ValueError(f"{problem}; row {bad.index}: {bad.message}.")


def prompts_of(
    rows: list, how: Reader | None, model, tokenizer, max_new_tokens: int, raw: bool = False, takes_turns: bool = False
) -> Prompts:
    """Read the prompts of rows. With a chat template, a text is a user's message, unless `raw`.

    Args:
        takes_turns: a list of texts holds the user's messages, turn by turn.
    """
    read, is_raw = reader(how, rows), raw or not speaks_chat(tokenizer)
    config = None if model.config.is_encoder_decoder else model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)

    def ids_of(prompt: Any, index: int) -> list[int]:
        """Tokenize a prompt, and check that it leaves room for its answer."""
        ids = prompt_ids(as_chat(prompt, tokenizer, raw), index, model, tokenizer)
        if limit is not None and len(ids) + max_new_tokens > limit:
            raise ValueError(f"{len(ids)} tokens and {max_new_tokens} new ones are more than {limit} positions")
        return ids

    def ids_of_turn(said: list[dict[str, str]], index: int) -> list[int]:
        """Tokenize a conversation; without a chat template, as one text."""
        return ids_of("\n\n".join(message["content"] for message in said) if is_raw else said, index)

    prompts = Prompts(make=ids_of_turn)
    for index, row in enumerate(rows):
        if isinstance(row, BadRow):
            prompts.bad_rows.append(row)
            continue
        try:
            said = read_row(read, row)
            is_turns = takes_turns and isinstance(said, list) and said and all(isinstance(one, str) for one in said)
            first, *later = said if is_turns else [said]
            prompts.ids[index] = ids_of(first, index)
        except (ValueError, TypeError) as error:
            prompts.bad_rows.append(BadRow(index, str(error)))
            continue
        if later:
            prompts.said[index] = first
        for text in later:
            number = len(rows) + len(prompts.before)
            prompts.said[number], prompts.before[number], index = text, index, number
    prompts.check()
    return prompts


def categories_of(rows: list, how: Reader | None, prompts: Prompts) -> list[str | None]:
    """The category of each prompt by index, later turns included; empty without a reader."""
    if how is None:
        return []
    read = reader(how, rows, "category")
    found: list[str | None] = []
    lacking: ValueError | None = None
    for row in rows:
        try:
            found.append(None if isinstance(row, BadRow) else str(read_row(read, row)))
        except ValueError as error:  # a row without one
            found.append(None)
            lacking = error
    if lacking is not None and not any(found):
        raise lacking
    for before in prompts.before.values():  # in the order of their indices
        found.append(found[before])
    return found


def read_row(read, row) -> Any:
    """Read a row, and turn any error of a user's function into a ValueError."""
    try:
        return read(row)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


class Task:
    """A task score, and the references of all prompts; a row without one becomes a bad row.

    Raises:
        ValueError, TypeError: the score is none, or no row has a reference.
    """

    def __init__(self, score: Any, how: Reader, rows: list, prompts: Prompts):
        if prompts.before:
            raise ValueError("`score` compares one text of a row, and the data set has conversations: leave it out.")
        self.name = score if isinstance(score, str) else getattr(score, "name", "score")
        self.score = score_function(score)
        self.references = prompts.read(rows, how, "references", lambda reference: reference)

    def scores_of(self, evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
        """The scores of every setting's texts. If a score of the user's fails at the end, what was decoded is kept."""
        texts = {setting.name: evaluation.rows(setting) for setting in evaluation.settings}
        try:  # a setting of an earlier run that was killed may have no text
            return {name: self._numbers(rows) for name, rows in texts.items() if rows}
        except Exception as error:
            warnings.warn(f"the score failed, so there is none: {type(error).__name__}: {error}", stacklevel=2)
            return {}

    def _numbers(self, rows: Mapping[int, Row]) -> dict[str, float | None]:
        """The numbers that the score returns, by name; `None` for nan, other entries left out."""
        result = self.score([row.text for row in rows.values()], [self.references[index] for index in rows])
        found = result if isinstance(result, Mapping) else {self.name: result}
        values = {str(key): float(value) for key, value in found.items() if isinstance(value, Real)}
        if not values:
            raise TypeError(f"the score returned {result!r}: a number or a dict of numbers is needed.")
        return {key: value if math.isfinite(value) else None for key, value in values.items()}


Score = Callable[[Sequence[str], Sequence[Any]], "float | Mapping[str, float]"]


def exact_match(predictions: Sequence[str], references: Sequence[Any]) -> dict[str, float]:
    """The share of texts that equal their reference, ignoring white space at both ends."""
    pairs = zip(predictions, references, strict=True)
    matches = [text.strip() == str(expected).strip() for text, expected in pairs]
    return {"exact_match": sum(matches) / len(matches)}


def score_function(score: Any) -> Score:
    """Return the score function of a function, an object with `compute`, `"exact_match"` or `"module:name"`.

    Raises:
        ValueError, TypeError: it is none of these.
    """
    if isinstance(score, str):
        if score == "exact_match":
            return exact_match
        if not all(score.partition(":")):
            raise ValueError(f"`score={score!r}` is not exact_match; your own is given as module:function.")
        try:
            score = resolve_name(score)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"`score={score}` cannot be imported: {error}.") from error
    if hasattr(score, "compute"):
        compute = score.compute
        return lambda predictions, references: compute(predictions=predictions, references=references)
    if not callable(score):
        raise TypeError(f"`score` is of type {type(score).__name__}: pass a function of predictions and references.")
    return score
