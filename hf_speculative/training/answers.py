"""The target's own answers to the prompts of a data set, kept in a journal, so that a killed run goes on where it was.

Sampled answers are the same in each run of one seed: parts of them are drawn together, each from a seed of its own. A part that
a kill has interrupted is drawn again from its beginning.

A draft has to guess what its target writes; texts by other authors have another distribution.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel

from ..batches import generate_batches
from ..distillation.sampling_params import SamplingParams
from ..reports import files
from .settings import Settings

#: rows that run together at least, on a CPU and elsewhere, and the answers of a part by rows
ROWS_ON_CPU, ROWS, PART = 16, 64, 8
#: settings that answers depend on
OF_ANSWERS = ("use", "max_new_tokens", "answers_per_prompt", "seed", "batch_size")
KEPT = "the answers before are kept, and the same call goes on once there is room"

#: the ids of answers, by the prompt's index in the data set and the number of the sample
Answers: TypeAlias = dict[tuple[int, int], tuple[int, ...]]


def header_of(target: str, prompts: str, settings: Settings) -> dict[str, Any]:
    """The first line of a journal: what its answers are to. A journal of others is refused.

    Args:
        target: name and fingerprint of its weights.
        prompts: digest of their ids.
    """
    of_answers = {name: value for name, value in settings.to_dict().items() if name in OF_ANSWERS}
    return {"target": target, "prompts": prompts} | of_answers


def read_answers(path: Path, header: dict[str, Any]) -> Answers:
    """The answers in a journal, none if it is missing or empty.

    Its lines after the header are `{"index": 3, "sample": 0, "new_ids": [...]}`.

    Raises:
        ValueError: it is about something else, or no journal.
    """
    if not path.exists() or not path.stat().st_size:
        return {}
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last newline was cut off by a kill
    try:
        first, *entries = map(json.loads, lines)
        theirs = {name: first[name] for name in header}
        found = {(one["index"], one["sample"]): tuple(one["new_ids"]) for one in entries}
    except (ValueError, KeyError, TypeError) as error:
        why = "its first line is cut off" if not lines else "it holds other lines"
        raise ValueError(f"{path} is no journal of answers ({why}): name another folder.") from error
    for name, value in header.items():
        if theirs[name] != value:
            raise ValueError(
                f"{path} holds answers of another run, whose {name} is {theirs[name]!r} and not {value!r}: name another folder."
            )
    return found


def _line(key: tuple[int, int], ids: Iterable[int]) -> str:
    return json.dumps({"index": key[0], "sample": key[1], "new_ids": list(ids)}) + "\n"


def answer(
    target: PreTrainedModel,
    prompts: dict[int, list[int]],
    settings: Settings,
    path: Path,
    header: dict[str, Any],
    watch: Callable[[int, int], None] = lambda done, total: None,
    share: tuple[int, int] = (0, 1),
    is_over: Callable[[], bool] = lambda: False,
    keywords: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add the answers that a journal lacks. Greedy ones are drafted from the texts themselves.

    Args:
        prompts: ids by index in the data set.
        path: of the journal, which is made where it is missing.
        header: what it is about.
        watch: is told how many answers there are, of how many.
        share: rank and number of processes, each of which makes its own part in a journal of its own.
        is_over: asked before each part and after each answer, once there are `settings.batch_size`: what is missing stays so.
        keywords: more of `generate`: which tokens end an answer.
    """
    (rank, count), least, found = share, settings.batch_size, read_answers(path, header)
    num_rows = max(rows_at_once(target), least)
    keys = [(index, sample) for sample in range(settings.answers_per_prompt) for index in prompts][rank::count]
    num_done = sum(key in found for key in keys)
    watch(num_done, len(keys))
    # Written anew, without what a kill left of a last line.
    files.write(path, "".join([json.dumps(header) + "\n", *(_line(key, ids) for key, ids in found.items())]))
    with path.open("ab", buffering=0) as file:
        for first in range(0, len(keys), PART * num_rows):
            part = keys[first : first + PART * num_rows]
            if num_done >= least and is_over():
                return
            if all(key in found for key in part):
                continue
            torch.manual_seed(settings.seed + first + 1_000_003 * rank)
            completions = generate_batches(
                target,
                [prompts[index] for index, _ in part],
                batch_size=num_rows,
                max_new_tokens=settings.max_new_tokens,
                **how_drafted(target, settings.use),
                **settings.use.generate_kwargs,
                **keywords,
            )
            with closing(completions):
                for completion in completions:
                    key = part[completion.index]
                    if key in found:
                        continue
                    files.append(file, _line(key, completion.new_ids), KEPT)
                    num_done += 1
                    watch(num_done, len(keys))
                    if num_done >= least and is_over():
                        return


def rows_at_once(target: PreTrainedModel) -> int:
    """How many rows decode together where there are enough."""
    return ROWS_ON_CPU if target.device.type == "cpu" else ROWS


def how_drafted(target: PreTrainedModel, use: SamplingParams) -> dict[str, Any]:
    """Keywords of drafting whose texts do not depend on draft lengths, which follow the clock."""
    # In half precision rounding depends on the width of a pass. Samples would need `reproducible`, whose noise is drawn for all
    # rows of a window: with a large vocabulary, most of the time.
    return {"draft_model": "auto" if use.temperature == 0 and target.dtype == torch.float32 else None}
