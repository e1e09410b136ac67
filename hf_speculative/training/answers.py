"""The target's own answers to the prompts of a data set, kept in a journal, so that a killed run goes on where it was.

A draft has to guess what its target writes. Texts that somebody else wrote teach it something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from transformers import PreTrainedModel

from ..batches import generate_batches
from ..evaluation.processes import Processes
from ..reports import files
from .distributions import Use
from .examples import Example

FORMAT = 1
KEPT = "the answers before are kept, and the same call goes on once there is room"


@dataclass(frozen=True)
class Asked:
    """What answers are asked for. A journal of other answers is refused.

    Attributes:
        target: name and fingerprint of its weights.
        prompts: digest of their ids.
        per_prompt: answers to each prompt; more than one makes sense only where they are sampled.
    """

    target: str
    prompts: str
    use: Use
    max_new_tokens: int
    per_prompt: int = 1
    seed: int = 0

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
        *lines, _ = self.path.read_bytes().split(b"\n")
        try:
            header, *entries = map(json.loads, lines)
            theirs = {name: header[name] for name in asked}
            found = {(one["index"], one["sample"]): tuple(one["new_ids"]) for one in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no journal of answers ({error!r}): name another folder.") from error
        for name, value in asked.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{self.path} holds answers of another run, whose {name} is {theirs[name]!r} and not {value!r}: name "
                    "another folder, or delete this file."
                )
        self.found = found

    def add(self, file: IO[bytes], key: tuple[int, int], ids: Iterable[int]) -> None:
        self.found[key] = tuple(ids)
        with files.named(self.path, KEPT):
            line = memoryview(f"{_line(key, self.found[key])}\n".encode())
            while line:  # a disk that is nearly full takes a part
                line = line[file.write(line) :]


def _line(key: tuple[int, int], ids: Iterable[int]) -> str:
    return json.dumps({"index": key[0], "sample": key[1], "new_ids": list(ids)})


def answer(
    target: PreTrainedModel,
    prompts: dict[int, list[int]],
    asked: Asked,
    journal: Journal,
    batch_size: int = 8,
    watch: Callable[[int, int], None] = lambda done, total: None,
    share: tuple[int, int] = (0, 1),
) -> None:
    """Adds the answers that the journal lacks. Texts themselves draft, so that this is faster than plain decoding.

    Args:
        prompts: ids by index in the data set.
        watch: is told how many answers there are, of how many.
        share: rank and number of processes, each of which makes its own part in a journal of its own.
    """
    rank, count = share
    keys = [(index, sample) for sample in range(asked.per_prompt) for index in prompts][rank::count]
    missing = [key for key in keys if key not in journal.found]
    num_done = len(keys) - len(missing)
    watch(num_done, len(keys))
    if not missing:
        return
    # Answers that are sampled again after a kill are other draws, but of the same distribution.
    torch.manual_seed(asked.seed + num_done + 1_000_003 * rank)
    completions = generate_batches(
        target,
        (prompts[index] for index, _ in missing),
        batch_size=batch_size,
        in_order=False,
        max_new_tokens=asked.max_new_tokens,
        method="auto",
        **asked.use.generate_kwargs,
    )
    with journal.path.open("ab", buffering=0) as file:
        for num, completion in enumerate(completions, start=num_done + 1):
            journal.add(file, missing[completion.index], completion.new_ids)
            watch(num, len(keys))


def answers_of_all(
    target: PreTrainedModel,
    prompts: dict[int, list[int]],
    asked: Asked,
    path: Path,
    batch_size: int,
    watch: Callable[[int, int], None],
    processes: Processes,
) -> list[Example]:
    """The answers that each process makes in a journal beside `path`, and those of the others."""
    rank, count = processes.rank, processes.count
    paths = [path if one == 0 else path.with_name(f"{path.name}.rank{one}") for one in range(count)]
    journal = Journal(paths[rank], asked)
    answer(target, prompts, asked, journal, batch_size, watch, (rank, count))
    processes.gather([])  # all have written theirs
    journals = [journal if one == rank else Journal(path, asked, writes=False) for one, path in enumerate(paths)]
    return list(examples_of(journals, prompts))


def examples_of(journals: Iterable[Journal], prompts: dict[int, list[int]]) -> Iterator[Example]:
    """All answers, in the order of the prompts, whoever made them first."""
    found = {key: ids for journal in journals for key, ids in journal.found.items()}
    for index, sample in sorted(found):
        if index in prompts:
            yield Example(tuple(prompts[index]), found[index, sample])
