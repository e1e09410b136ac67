"""Split the prompts of a data set: some to learn from, some held out to measure acceptance."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..distillation.teacher import Example
from ..measuring.inputs import prompts_of
from ..measuring.journal import BadRow
from ..measuring.rows import Reader, read_rows
from ..models.described import digest
from ..tokenizers.chat import ids_of

#: at most this share of the prompts is held out
HELD_OUT_SHARE = 0.2


@dataclass
class Data:
    """The prompts of a data set, each once.

    Attributes:
        prompts: to learn from, by index in the data set.
        held_out: to measure on.
        bad_rows: rows that cannot be used, with the reason.
        num_repeated: rows whose prompt was there before.
        answers: by index, where the data set brings the target's answers itself; else empty.
    """

    prompts: dict[int, list[int]]
    held_out: list[list[int]]
    bad_rows: list[BadRow]
    num_repeated: int
    answers: dict[int, list[int]]

    def examples(self) -> list[Example]:
        """Those that the data set brings."""
        return [Example(tuple(self.prompts[i]), tuple(ids)) for i, ids in self.answers.items() if i in self.prompts]


def read_data(
    dataset,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt: Reader | None = None,
    answers: Reader | None = None,
    split: str | None = None,
    config: str | None = None,
    limit: int | None = None,
    raw: bool = False,
    held_out: int = 16,
    max_new_tokens: int = 128,
) -> Data:
    """
    Args:
        dataset, prompt, split, config, limit, raw: as in `hf_speculative.evaluate`.
        answers: the column, template or function with the target's own answers; by default they are generated.
        held_out: the number of prompts to hold out, at most a fifth of all; they are chosen by a hash of their ids.

    Raises:
        ValueError: no row can be used, naming the first row and what is wrong with it; or there is one prompt only.
    """
    rows = read_rows(dataset, split=split, config=config, limit=limit)
    found = prompts_of(rows, prompt, target, tokenizer, max_new_tokens, raw)

    def answer_ids(text: Any) -> list[int]:
        if not isinstance(text, str) or not text:
            raise ValueError(f"{text!r} is no text")
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], *ids_of(tokenizer.eos_token_id)]

    texts = {} if answers is None else found.read(rows, answers, "answers", answer_ids)
    first_of = {tuple(ids): index for index, ids in reversed(found.ids.items())}
    unique = {index: found.ids[index] for index in sorted(first_of.values())}
    if len(unique) < 2:
        usable = f"{len(unique)} prompt that can be used, of {len(rows)} rows"
        first = f" Row {found.bad_rows[0].index}: {found.bad_rows[0].message}." if found.bad_rows else ""
        raise ValueError(f"`dataset` has {usable}: 2 or more are needed.{first}")
    num_held_out = max(1, min(held_out, int(HELD_OUT_SHARE * len(unique))))
    chosen = sorted(unique, key=lambda index: digest(unique[index]))[:num_held_out]
    return Data(
        prompts={index: ids for index, ids in unique.items() if index not in chosen},
        held_out=[unique[index] for index in sorted(chosen)],
        bad_rows=sorted(found.bad_rows, key=lambda row: row.index),
        num_repeated=len(found.ids) - len(unique),
        answers=texts,
    )
