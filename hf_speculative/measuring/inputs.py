"""What is decoded and what it is compared with: the prompts of a data set, the references of a score."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from ..call.prompts import prompt_ids
from ..tokenizers.chat import as_chat
from . import scores
from .journal import BadRow
from .results import Evaluation
from .rows import Reader, reader


@dataclass
class Prompts:
    """The prompts that can be used, by their index in the data set."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    bad_rows: list[BadRow] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(list(self.ids.items())).encode()).hexdigest()[:16]

    def batches(self, size: int) -> list[tuple[list[int], list[list[int]]]]:
        """The prompts, `size` at a time: their indices, and their ids."""
        indices = list(self.ids)
        firsts = range(0, len(indices), size)
        groups = [indices[first : first + size] for first in firsts]
        return [(group, [self.ids[index] for index in group]) for group in groups]


def prompts_of(rows: list, how: Reader | None, model, tokenizer, max_new_tokens: int, raw: bool = False) -> Prompts:
    """The prompts of rows. A text is what a user says, where there is a chat template, unless it is `raw`."""
    read = reader(how, rows)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    prompts = Prompts()
    for index, row in enumerate(rows):
        if isinstance(row, BadRow):
            prompts.bad_rows.append(row)
            continue
        try:
            ids = prompt_ids(as_chat(_read(read, row), tokenizer, raw), index, model, tokenizer)
            if limit is not None and not model.config.is_encoder_decoder and len(ids) + max_new_tokens > limit:
                raise ValueError(
                    f"{len(ids)} tokens and {max_new_tokens} new ones are more than the model's {limit} positions"
                )
        except (ValueError, TypeError) as error:
            prompts.bad_rows.append(BadRow(index, str(error)))
        else:
            prompts.ids[index] = ids
    if not prompts.ids:
        first = prompts.bad_rows[0]
        raise ValueError(f"no row of `dataset` can be used; row {first.index}: {first.message}.")
    return prompts


def _read(read, row) -> Any:
    """What a reader finds in a row. A function of the user's may fail on a row in any way."""
    try:
        return read(row)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


@dataclass
class Task:
    """A score and what it compares with."""

    score: Any
    references: Reader
    by_index: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self):
        self.name = self.score if isinstance(self.score, str) else getattr(self.score, "name", "score")
        self.score = scores.resolve(self.score)

    def read(self, rows: list, prompts: Prompts) -> None:
        """The references of all prompts; a row without one is a bad row."""
        read = reader(self.references, rows, "references")
        for index in list(prompts.ids):
            try:
                self.by_index[index] = _read(read, rows[index])
            except ValueError as error:
                prompts.bad_rows.append(BadRow(index, f"its reference: {error}"))
                del prompts.ids[index]
        if not prompts.ids:
            raise ValueError(f"no row of `dataset` has a reference; row 0: {prompts.bad_rows[0].message}.")

    def scores_of(self, evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
        """The scores of every setting's texts."""
        found = {}
        for setting in evaluation.settings:
            rows = evaluation.rows(setting)
            if not rows:  # of an earlier run that was killed
                continue
            texts, references = [row.text for row in rows.values()], [self.by_index[index] for index in rows]
            found[setting.name] = scores.numbers(self.score(texts, references), self.name)
        return found
