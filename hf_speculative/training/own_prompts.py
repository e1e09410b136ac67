"""Let a target write its own prompts, where no data is given.

A chat model continues its template up to the user's turn, and so writes what users ask (Magpie, Xu et al. 2024,
arXiv 2406.08464). Another model continues its beginning token, and the first words of its texts are prompts.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..generation import generate
from ..models import device_of
from ..reports import files
from ..tokenizers.chat import around_a_turn, speaks_chat
from .answers import how_drafted
from .sampling_params import SamplingParams

#: how a user's turn is sampled, how many at once, and the most tokens of one
USE = SamplingParams(temperature=1.0, top_p=0.95)
BATCH, TURN = 16, 120
#: tokens of a text without a chat template that make a prompt
OPENING = 12
#: characters of a prompt
SHORTEST, LONGEST = 12, 600
#: a prompt of more words than the first number has at least this share of different ones
FEW_WORDS, LEAST_DIFFERENT = 20, 0.4
#: batches without a usable prompt, before it is given up
HOPELESS = 8


#: where they lie in the folder of a run
FILE = "prompts.jsonl"


def write_prompts(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    num_prompts: int,
    seed: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Bring a file of prompts to `num_prompts` different lines, `{"prompt": text or messages}`.

    What the file has already is kept, so that a stopped call goes on where it was; one seed writes the same prompts.

    Args:
        watch: is told how many prompts there are, of how many.
        is_over: asked after each batch, once there are two prompts or more.

    Raises:
        ValueError: the target writes nothing that can be used, or its chat template takes no user.
    """
    opening, is_chat = _opening(target, tokenizer)
    found = _read(path)
    num_idle = 0
    device = device_of(target)
    ids = torch.tensor([opening] * BATCH, device=device)
    watch(len(found), num_prompts)
    while len(found) < num_prompts:
        torch.manual_seed(seed * 1_000_003 + len(found) + 10_007 * num_idle)
        output = generate(
            target,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TURN if is_chat else OPENING,
            pad_token_id=opening[-1] if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            **how_drafted(target, USE),
            **USE.generate_kwargs,
        )
        texts = [_text(row, tokenizer, is_chat) for row in output[:, len(opening) :].tolist()]
        new = list(dict.fromkeys(text for text in texts if text is not None and text not in found))
        found |= dict.fromkeys(new[: num_prompts - len(found)])
        num_idle = 0 if new else num_idle + 1
        if num_idle == HOPELESS:
            raise ValueError(
                f"the target writes no prompts that can be used, in {HOPELESS * BATCH} tries: give `data`, a file or data set "
                "with some."
            )
        _write(path, found, is_chat)
        watch(len(found), num_prompts)
        if len(found) > 1 and is_over():
            return


def _opening(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], bool]:
    """The ids that come before a user's turn, or the beginning token; and whether it is a chat."""
    if speaks_chat(tokenizer):
        try:
            return around_a_turn(tokenizer)[0], True
        except ValueError as error:
            raise ValueError(f"{error} Give `data` with prompts.") from error
    config = target.generation_config
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else config.bos_token_id
    if start is None:
        raise ValueError(
            "the target has neither a chat template nor a beginning token to write prompts from: give `data`."
        )
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
    prompts = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]
    return dict.fromkeys(prompt if isinstance(prompt, str) else prompt[0]["content"] for prompt in prompts)


def _write(path: Path, texts: dict[str, Any], is_chat: bool) -> None:
    prompts = [[{"role": "user", "content": text}] if is_chat else text for text in texts]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts]
    files.write(path, "".join(lines))
