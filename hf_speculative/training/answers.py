"""The target's own answers to the prompts of a data set, and prompts by itself where no data is given.

Answers are kept in a journal, so that a killed run goes on where it was.

Sampled answers are the same in each run of one seed: parts of them are drawn together, each from a seed of its own. A part that
a kill has interrupted is drawn again from its beginning.

A draft has to guess what its target writes; texts by other authors have another distribution.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..batches import generate_batches
from ..call.configuration import first_given
from ..distillation.sampling_params import SamplingParams
from ..generation import generate
from ..models import device_of
from ..reports import files
from ..tokenizers.chat import around_a_turn, speaks_chat
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
            other = f"another run, whose {name} is {theirs[name]!r} and not {value!r}"
            raise ValueError(f"{path} holds answers of {other}: name another folder.")
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
    others: Sequence[Path] = (),
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
        others: journals whose answers are not made again.
        is_over: asked before each part and after each answer, once there are `settings.batch_size`: what is missing stays so.
        keywords: more of `generate`: which tokens end an answer.
    """
    (rank, count), least, found = share, settings.batch_size, read_answers(path, header)
    num_rows, known = max(rows_at_once(target), least), {*found}.union(*(read_answers(one, header) for one in others))
    keys = [(index, sample) for sample in range(settings.answers_per_prompt) for index in prompts][rank::count]
    num_done = sum(key in known for key in keys)
    watch(num_done, len(keys))
    # Written anew, without what a kill left of a last line.
    files.write(path, "".join([json.dumps(header) + "\n", *(_line(key, ids) for key, ids in found.items())]))
    with path.open("ab", buffering=0) as file:
        for first in range(0, len(keys), PART * num_rows):
            part = keys[first : first + PART * num_rows]
            if num_done >= least and is_over():
                return
            if all(key in known for key in part):
                continue
            torch.manual_seed(settings.seed + first + 1_000_003 * rank)
            texts = [prompts[index] for index, _ in part]
            how = how_drafted(target, settings.use) | settings.use.generate_kwargs | dict(keywords)
            completions = generate_batches(target, texts, batch_size=num_rows, max_new_tokens=settings.max_new_tokens, **how)
            with closing(completions):
                for completion in completions:
                    key = part[completion.index]
                    if key in known:
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


#: how a user's turn is sampled, and the most tokens of one
USE = SamplingParams(temperature=1.0, top_p=0.95)
TURN = 120
#: tokens of a text without a chat template that make a prompt
OPENING = 12
#: characters of a prompt
SHORTEST, LONGEST = 12, 600
#: a prompt of more words than the first number has at least this share of different ones
FEW_WORDS, LEAST_DIFFERENT = 20, 0.4
#: batches without a usable prompt, before it is given up
HOPELESS = 8


#: where they lie in the folder of a run
PROMPTS = "prompts.jsonl"


def write_prompts(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    settings: Settings,
    watch: Callable[[int, int], None] = lambda done, total: None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Bring a file of prompts to `settings.num_prompts` different lines, `{"prompt": text}`.

    A chat model continues its template up to the user's turn, and so writes what users ask (Magpie, Xu et al. 2024,
    arXiv 2406.08464). Another model continues its beginning token, and the first words of its texts are prompts.

    What the file has already is kept, so that a stopped call goes on where it was; one seed writes the same prompts.

    Args:
        watch: is told how many prompts there are, of how many.
        is_over: asked after each batch, once there are two prompts or more.

    Raises:
        ValueError: the target writes nothing that can be used, or its chat template takes no user; the file is another one.
    """
    num_rows = rows_at_once(target)
    opening, is_chat = _opening(target, tokenizer)
    found, num_prompts, num_idle = _read(path), settings.num_prompts, 0
    ids = torch.tensor([opening] * num_rows, device=device_of(target))
    watch(len(found), num_prompts)
    while len(found) < num_prompts:
        torch.manual_seed(settings.seed * 1_000_003 + len(found) + 10_007 * num_idle)
        pad = opening[-1] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        how = {"max_new_tokens": TURN if is_chat else OPENING} | how_drafted(target, USE) | USE.generate_kwargs
        output = generate(target, ids, attention_mask=torch.ones_like(ids), pad_token_id=pad, **how)
        texts = [_text(row, tokenizer, is_chat) for row in output[:, len(opening) :].tolist()]
        new = list(dict.fromkeys(text for text in texts if text is not None and text not in found))
        found |= dict.fromkeys(new[: num_prompts - len(found)])
        num_idle = 0 if new else num_idle + 1
        if num_idle == HOPELESS:
            raise ValueError(f"the target writes no prompts that can be used in {HOPELESS * num_rows} tries: give `data`.")
        files.write(path, "".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in found))
        watch(len(found), num_prompts)
        if len(found) > 1 and is_over():
            return


def _opening(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], bool]:
    """The ids that come before a user's turn, or the beginning token; and whether it is a chat."""
    if speaks_chat(tokenizer):
        try:
            opening = around_a_turn(tokenizer)[0]
        except ValueError as error:
            raise ValueError(f"{error} Give `data` with prompts.") from error
        if opening:
            return opening, True
    start = first_given(tokenizer.bos_token_id, target.generation_config.bos_token_id)
    if start is None:
        raise ValueError("the target has neither a chat template nor a beginning token: give `data` with prompts.")
    return [start], False


def _text(row: list[int], tokenizer: PreTrainedTokenizerBase, is_chat: bool) -> str | None:
    """What a row says, if it is a whole and sensible prompt."""
    special = {*tokenizer.all_special_ids}
    end = next((place for place, token in enumerate(row) if token in special), None)
    if is_chat and end is None:  # not said to its end
        return None
    text = str(tokenizer.decode(row[:end])).strip()
    words = text.split()
    is_repeating = len(words) > FEW_WORDS and len({*words}) < LEAST_DIFFERENT * len(words)
    return text if SHORTEST <= len(text) <= LONGEST and not is_repeating and "<|" not in text else None


def _read(path: Path) -> dict[str, None]:
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8") as lines:
            return dict.fromkeys(json.loads(line)["prompt"] for line in lines)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds other prompts than the target's own: give them as `data`.") from error
