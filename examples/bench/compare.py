"""What the scripts of this folder share: a pair and some rivals, evaluated over the built-in prompts and shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hf_speculative as hs
from hf_speculative.measuring.calls import Decoded, Rival
from hf_speculative.measuring.render import screen
from hf_speculative.reports.timing import timed


def show(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    rivals: Sequence[Rival],
    num_draft_tokens: int = 4,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    repeats: int = 3,
) -> hs.Evaluation:
    """Evaluate plain decoding, our own with the draft, and the rivals; print the table."""
    settings = [hs.Setting(draft_model="draft", num_draft_tokens=num_draft_tokens, temperature=temperature)]
    settings += [
        hs.Setting(rival=rival.name, num_draft_tokens=num_draft_tokens, temperature=temperature)
        for rival in rivals
        if rival.max_batch_size is None or len(prompts) <= rival.max_batch_size
    ]
    ends = {} if target.generation_config.eos_token_id is None else {"min_new_tokens": max_new_tokens}
    evaluation = hs.evaluate(
        target,
        {"draft": draft},
        [{"prompt": ids} for ids in prompts],
        tokenizer=tokenizer,
        settings=settings,
        rivals=rivals,
        batch_size=len(prompts),
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        **ends,
    )
    screen.print_evaluation(Console(), evaluation)
    return evaluation


def timed_rival(name: str, new_ids) -> Rival:
    """A rival whose `new_ids(call)` gives the new tokens of each row of a call, and which tells no more than when it ended."""

    def decode(call) -> Decoded:
        ids, seconds = timed(lambda: new_ids(call), torch.device("cpu"))
        return Decoded(ids, seconds)

    return Rival(name, decode)
