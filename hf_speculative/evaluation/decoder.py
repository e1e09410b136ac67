"""One batch of prompts under one setting."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from ..call.configuration import SpeculativeConfig, first_given
from ..call.options import DEFAULT_MAX_DRAFT_TOKENS
from ..call.output import Rows
from ..call.prompts import padded
from ..generation import Attached, generate, generate_rounds
from ..models import device_of
from ..sampling.copying import clone
from ..tokenizers.pieces import Pieces
from .drafts import NamedDraft
from .journal import Call, Difference, Row
from .settings import Setting

#: fields of a generation config that say how much to draft
LENGTHS = ("num_assistant_tokens", "num_assistant_tokens_schedule")
#: tokens of a warm-up
FEW = 8


@dataclass
class Decoder:
    """A target with its drafts, and the options of all calls.

    Attributes:
        kwargs: keywords of every `generate`, as `settings_of_rows` gives them.
        seed: batch b is sampled with seed + b, under every setting.
    """

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    drafts: Mapping[str, NamedDraft]
    kwargs: dict[str, Any]
    seed: int

    def warm_up(self, setting: Setting, prompts: list[list[int]]) -> None:
        """What a first call does once, costs measured and memory taken; also where a setting that cannot work raises."""
        few = {"max_new_tokens": min(FEW, self.kwargs["max_new_tokens"])}
        if self.kwargs.get("min_new_tokens") is not None:
            few["min_new_tokens"] = min(FEW, self.kwargs["min_new_tokens"])
        with self._seeded(0):
            generate(self.target, **self._inputs(prompts), **self._kwargs(setting) | few)

    def decode(self, setting: Setting, batch: int, indices: list[int], prompts: list[list[int]]) -> Call:
        """The prompts under the setting, timed."""
        inputs, kwargs = self._inputs(prompts), self._kwargs(setting)
        ends = Ends([*(kwargs.get("stopping_criteria") or ()), *self._stop_strings()])
        if setting.is_plain and ends.criteria:
            kwargs |= {"stopping_criteria": StoppingCriteriaList([ends]), "stop_strings": None}
        decoded = Rows(len(indices))
        with self._seeded(batch):
            start = time.perf_counter()
            if setting.is_plain:
                sequences: Any = generate(self.target, **inputs, **kwargs)
            else:
                for round, counts in generate_rounds(self.target, **inputs, **kwargs):  # noqa: B007, the last counts are whole
                    decoded.follow(round)
            if self.target.device.type == "cuda":
                torch.cuda.synchronize(self.target.device)
            seconds = time.perf_counter() - start
        if setting.is_plain:
            width = 1 if self.target.config.is_encoder_decoder else inputs["input_ids"].shape[1]
            new = sequences[:, width:].tolist()
            lengths = [ends.by_row.get(row, math.inf) - width for row in range(len(new))]
            return Call(setting.name, batch, seconds, list(map(self._plain_row, indices, new, lengths, prompts)))
        rows = []
        for index, ids, chances, of_row in zip(indices, decoded.new_tokens, decoded.survival, counts.rows, strict=True):
            known = [None if math.isnan(chance) else float(f"{chance:.4f}") for chance in chances]
            rows.append(Row(index, ids, self._text(ids), None, self._pieces(ids), known, of_row))
        return Call(setting.name, batch, seconds, rows, counts)

    def difference(self, setting: Setting, prompt: list[int], plain: Row, other: Row) -> Difference:
        """Where `other` leaves `plain`, and how close the target's two best tokens are there."""
        pairs = zip(plain.new_ids, other.new_ids, strict=False)
        shorter = min(len(plain.new_ids), len(other.new_ids))
        position = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
        before = plain.new_ids[:position]
        is_encoder_decoder = self.target.config.is_encoder_decoder
        inputs = self._inputs([prompt if is_encoder_decoder else prompt + before])
        if is_encoder_decoder:
            config = self.target.generation_config
            start = first_given(config.decoder_start_token_id, self.target.config.decoder_start_token_id)
            inputs["decoder_input_ids"] = torch.tensor([[start, *before]], device=device_of(self.target))
        one = {"max_new_tokens": 1, "min_new_tokens": None, "do_sample": False, "draft_model": None}
        one |= {"output_logits": True, "return_dict_in_generate": True}
        try:
            logits = generate(self.target, **inputs, **self._own_kwargs() | one).logits[0][0].float()
        except RuntimeError:  # out of memory, say: where they differ is known all the same
            return Difference(setting.name, plain.index, position, None)
        best, second = logits.topk(2).values.tolist()
        gap = best - second
        return Difference(setting.name, plain.index, position, gap if math.isfinite(gap) else None)

    def _kwargs(self, setting: Setting) -> dict[str, Any]:
        draft: dict[str, Any] = {"draft_model": None} if setting.is_plain else {}
        if setting.draft is not None:
            draft = self.drafts[setting.draft].generate_kwargs | self._length_of(setting)
        return {**self._own_kwargs(), **draft, **setting.generate_kwargs}

    def _length_of(self, setting: Setting) -> dict[str, Any]:
        """What the setting's name says, also where a config or what is attached would say something else."""
        if setting.num_draft_tokens is not None:
            return {"num_assistant_tokens_schedule": "constant"}
        attached = vars(self.target).get("generate")
        draft = self.drafts[setting.draft or ""].model
        config = attached.config if isinstance(attached, Attached) else SpeculativeConfig()
        told = [self._given(name) for name in LENGTHS] + [getattr(draft.generation_config, n, None) for n in LENGTHS]
        if all(value is None for value in (*told, config.num_draft_tokens, config.schedule)):
            return {}  # drafts made for a number of tokens take that
        return {"num_draft_tokens": DEFAULT_MAX_DRAFT_TOKENS, "num_assistant_tokens_schedule": "adaptive"}

    def _own_kwargs(self) -> dict[str, Any]:
        """With copies of processors and criteria: what they remember of one batch must not reach the next."""
        kinds = {"logits_processor": LogitsProcessorList, "stopping_criteria": StoppingCriteriaList}
        given = {name: kind(clone(list(self.kwargs[name]))) for name, kind in kinds.items() if self.kwargs.get(name)}
        return self.kwargs | given

    def _stop_strings(self) -> list[StopStringCriteria]:
        found = self._given("stop_strings")
        return [] if found is None else [StopStringCriteria(self.tokenizer, found)]

    def _given(self, name: str) -> Any:
        """An option of the call, or of a generation config."""
        configs = (self.kwargs.get("generation_config"), self.target.generation_config)
        return first_given(self.kwargs.get(name), *(getattr(config, name, None) for config in configs))

    def _inputs(self, prompts: list[list[int]]) -> dict[str, torch.Tensor]:
        ids, mask = padded(prompts, self.kwargs["pad_token_id"], left=not self.target.config.is_encoder_decoder)
        device = device_of(self.target)
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    @contextmanager
    def _seeded(self, batch: int):
        """The same randomness for a batch under every setting; the user's own is left as it was."""
        on_gpu = self.target.device.type == "cuda"
        with torch.random.fork_rng(
            range(torch.cuda.device_count()) if on_gpu else []
        ):  # the seed is that of all devices
            torch.manual_seed(self.seed + batch)
            yield

    def _plain_row(self, index: int, ids: list[int], length: float, prompt: list[int]) -> Row:
        """Plain output up to its end; rows that are done are padded, or go on where there is no end token."""
        eos = _as_list(self._given("eos_token_id"))
        length = min(length, next((i + 1 for i, token in enumerate(ids) if token in eos), len(ids)))
        ids = ids[: int(length)]
        return Row(index, ids, self._text(ids), self.tokenizer.decode(prompt, skip_special_tokens=True))

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _pieces(self, ids: list[int]) -> list[str]:
        """The text that each token adds; together the whole text."""
        pieces = Pieces(self._text)
        return [pieces.add(token, is_last=end == len(ids)) for end, token in enumerate(ids, start=1)]


class Ends(StoppingCriteria):
    """All of `criteria` as one, which notes the width `by_row` at which they ended a row."""

    def __init__(self, criteria: list[StoppingCriteria]):
        self.criteria = StoppingCriteriaList(criteria)
        self.by_row: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        done = self.criteria(input_ids, scores, **kwargs)
        for row, is_done in enumerate(done.tolist()):
            if is_done:
                self.by_row.setdefault(row, input_ids.shape[1])
        return done


def _as_list(ids) -> list[int]:
    if ids is None:
        return []
    return list(ids) if isinstance(ids, (list, tuple)) else [int(ids)]
