"""Let a target write its own prompts, where no data is given.

A chat model continues its template up to the user's turn, and so writes what users ask (Magpie, Xu et al. 2024,
arXiv 2406.08464). Another model continues its beginning token, and the first words of its texts are prompts.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.configuration import first_given
from ..distillation.sampling_params import SamplingParams
from ..generation import generate
from ..models import device_of
from ..reports import files
from ..tokenizers.chat import around_a_turn, speaks_chat
from .answers import how_drafted, rows_at_once
from .settings import Settings

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
            raise ValueError(f"the target writes no prompts that can be used in {HOPELESS * num_rows} tries: give `data`.")
        files.write(path, "".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in found))
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
