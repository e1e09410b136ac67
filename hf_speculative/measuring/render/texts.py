"""Texts to look at: which prompts to show, and which of their tokens the draft had guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..journal import Row
from ..results import Evaluation
from ..settings import Setting
from ..speedup import Speedup

#: so many prompts are all shown, of more the fastest, the median and the slowest
FEW = 6
#: of a longer prompt the end is shown, of a longer text the start
MAX_PROMPT_CHARACTERS = 2000
MAX_TOKENS = 600


@dataclass(frozen=True)
class Unit:
    """What is shown as one: a token, or several tokens that together make a character.

    Attributes:
        text: empty at the end of a text, for its end token.
        chances: of each token that it and the draft tokens before it in its round were kept; `None` for the target's own.
    """

    text: str
    chances: list[float | None]

    @property
    def chance(self) -> float | None:
        """The least of its draft tokens; `None` where all are the target's own."""
        return min((chance for chance in self.chances if chance is not None), default=None)

    @property
    def note(self) -> str:
        notes = ["the target's own" if c is None else f"drafted, chance to be kept {c:.2f}" for c in self.chances]
        if len(notes) == 1:
            return notes[0]
        what = f"{len(notes)} tokens shown as one" if self.text else f"{len(notes)} tokens without text"
        return f"{what}: {'; '.join(notes)}"


@dataclass(frozen=True)
class Text:
    """A prompt and its continuation.

    Attributes:
        place: `fastest`, `median` or `slowest` of all; empty where all are shown.
        speedup: of its batch.
        is_identical: to plain decoding's text; `None` where that is not promised.
        num_left_out: tokens, and characters of the prompt, that are not shown.
    """

    index: int
    place: str
    speedup: Speedup
    is_identical: bool | None
    prompt: str
    num_characters_left_out: int
    units: list[Unit]
    num_tokens_left_out: int
    num_tokens: int
    num_drafted: int


def texts(evaluation: Evaluation, setting: Setting) -> list[Text]:
    """Some of the texts of a setting, the fastest first."""
    speedups: dict[int, Speedup] = {}
    calls = evaluation.calls[setting.name]
    for batch, speedup in evaluation.speedups(setting).items():
        speedups |= {row.index: speedup for row in calls[batch].rows}
    order = sorted(speedups, key=lambda index: -speedups[index].median)
    places = dict.fromkeys(order, "")
    if len(order) > FEW:
        places = {order[0]: "fastest", order[len(order) // 2]: "median", order[-1]: "slowest"}
    rows, plain = evaluation.rows(setting), evaluation.rows(setting.baseline)
    identical = evaluation.identical(setting)
    return [
        _text(rows[index], plain[index].prompt or "", place, speedups[index], identical.get(index))
        for index, place in places.items()
    ]


def _text(row: Row, prompt: str, place: str, speedup: Speedup, is_identical: bool | None) -> Text:
    return Text(
        index=row.index,
        place=place,
        speedup=speedup,
        is_identical=is_identical,
        prompt=prompt[-MAX_PROMPT_CHARACTERS:].lstrip("\n"),
        num_characters_left_out=max(0, len(prompt) - MAX_PROMPT_CHARACTERS),
        units=list(units(row.pieces[:MAX_TOKENS], row.acceptance_prob[:MAX_TOKENS])),
        num_tokens_left_out=max(0, len(row.pieces) - MAX_TOKENS),
        num_tokens=len(row.acceptance_prob),
        num_drafted=sum(chance is not None for chance in row.acceptance_prob),
    )


def units(pieces: list[str], acceptance_prob: list[float | None]) -> Iterator[Unit]:
    """Tokens without a text of their own are joined with the next one that has one."""
    chances: list[float | None] = []
    for piece, chance in zip(pieces, acceptance_prob, strict=True):
        chances.append(chance)
        if piece:
            yield Unit(piece, chances)
            chances = []
    if chances:
        yield Unit("", chances)
