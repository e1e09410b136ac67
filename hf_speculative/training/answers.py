"""The target's own answers to the prompts of a data set, kept in a journal, so that a killed run goes on where it was.

Sampled answers are the same in each run of one seed: parts of them are drawn together, each from a seed of its own. A part that
a kill has interrupted is drawn again from its beginning.

A draft has to guess what its target writes; texts by other authors have another distribution.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import torch
from transformers import PreTrainedModel

from ..batches import generate_batches
from ..reports import files
from .examples import Example
from .sampling_params import SamplingParams

FORMAT = 2
#: answers of a part, by rows that run together
PART = 8
KEPT = "the answers before are kept, and the same call goes on once there is room"


@dataclass(frozen=True)
class Asked:
    """What answers are asked for. A journal of other answers is refused.

    Attributes:
        target: name and fingerprint of its weights.
        prompts: digest of their ids.
        per_prompt: answers to each prompt; more than one makes sense only where they are sampled.
        seed: with `batch_size`, what sampled answers are drawn from.
    """

    target: str
    prompts: str
    use: SamplingParams
    max_new_tokens: int
    per_prompt: int = 1
    seed: int = 0
    batch_size: int = 8

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT} | vars(self) | {"use": vars(self.use)}


class Journal:
    """A file with one JSON line for each answer: `{"index": 3, "sample": 0, "new_ids": [...]}`.

    Args:
        path: continued if it is there.
        asked: what it is about.
        writes: this process adds to it.

    Raises:
        ValueError: it is about something else, or no journal.
    """

    def __init__(self, path: Path, asked: Asked, writes: bool = True):
        self.path, self.found = path, {}  # type: Path, dict[tuple[int, int], tuple[int, ...]]
        header = json.dumps(asked.to_dict())
        if path.exists() and path.stat().st_size:
            self._read(json.loads(header))
        if not writes:
            return
        lines = [header, *(_line(key, ids) for key, ids in self.found.items())]
        files.write(path, "\n".join(lines) + "\n")  # without what a kill left of a last line

    def _read(self, asked: dict[str, Any]) -> None:
        *lines, _ = self.path.read_bytes().split(b"\n")  # what follows the last newline was cut off by a kill
        try:
            header, *entries = map(json.loads, lines)
            theirs = {name: header[name] for name in asked}
            found = {(one["index"], one["sample"]): tuple(one["new_ids"]) for one in entries}
        except (ValueError, KeyError, TypeError) as error:
            why = "its first line is cut off" if not lines else "it holds other lines"
            raise ValueError(f"{self.path} is no journal of answers ({why}): name another folder.") from error
        for name, value in asked.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{self.path} holds answers of another run, whose {name} is {theirs[name]!r} and not {value!r}: name "
                    "another folder, or delete this file."
                )
        self.found = found

    def add(self, file: IO[bytes], key: tuple[int, int], ids: Iterable[int]) -> None:
        self.found[key] = tuple(ids)
        files.append(file, f"{_line(key, self.found[key])}\n", KEPT)


def _line(key: tuple[int, int], ids: Iterable[int]) -> str:
    return json.dumps({"index": key[0], "sample": key[1], "new_ids": list(ids)})


def answer(
    target: PreTrainedModel,
    prompts: dict[int, list[int]],
    asked: Asked,
    journal: Journal,
    watch: Callable[[int, int], None] = lambda done, total: None,
    share: tuple[int, int] = (0, 1),
    is_over: Callable[[], bool] = lambda: False,
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Adds the answers that the journal lacks. Texts themselves draft, so that this is faster than plain decoding.

    Args:
        prompts: ids by index in the data set.
        watch: is told how many answers there are, of how many.
        share: rank and number of processes, each of which makes its own part in a journal of its own.
        is_over: asked before each part and after each answer, once there are `asked.batch_size`: what is missing stays so.
        keywords: more of `generate`: which tokens end an answer.
    """
    (rank, count), batch_size = share, asked.batch_size
    keys = [(index, sample) for sample in range(asked.per_prompt) for index in prompts][rank::count]
    num_done = sum(key in journal.found for key in keys)
    watch(num_done, len(keys))
    with journal.path.open("ab", buffering=0) as file:
        for first in range(0, len(keys), PART * batch_size):
            part = keys[first : first + PART * batch_size]
            if num_done >= batch_size and is_over():
                return
            if all(key in journal.found for key in part):
                continue
            torch.manual_seed(asked.seed + first + 1_000_003 * rank)
            completions = generate_batches(
                target,
                [prompts[index] for index, _ in part],
                batch_size=batch_size,
                max_new_tokens=asked.max_new_tokens,
                **how_drafted(target, asked.use),
                **asked.use.generate_kwargs,
                **keywords,
            )
            with closing(completions):
                for completion in completions:
                    key = part[completion.index]
                    if key in journal.found:
                        continue
                    journal.add(file, key, completion.new_ids)
                    num_done += 1
                    watch(num_done, len(keys))
                    if num_done >= batch_size and is_over():
                        return


def how_drafted(target: PreTrainedModel, use: SamplingParams) -> dict[str, Any]:
    """Keywords of drafting whose texts do not depend on draft lengths, which follow the clock."""
    if target.dtype != torch.float32:  # rounding depends on the width of a pass
        return {"draft_model": None}
    return {"draft_model": "auto"} | ({} if use.temperature == 0 else {"reproducible": True})


def examples_of(journals: Iterable[Journal], prompts: dict[int, list[int]]) -> Iterator[Example]:
    """The answers of all journals, in the order of the prompts."""
    found = {key: ids for journal in journals for key, ids in journal.found.items()}
    for index, sample in sorted(found):
        if index in prompts:
            yield Example(tuple(prompts[index]), found[index, sample])
