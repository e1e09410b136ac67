"""What is measured: a target, a draft, and prompts for them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: modules of the standard library whose source is the prompt text of real pairs
TEXT_MODULES = ("argparse", "typing", "inspect", "subprocess", "dataclasses", "ast")


@dataclass(frozen=True)
class Calibration:
    """What the calibration of a pair reached.

    Attributes:
        acceptance: mean over positions of sum min(p, q); when greedy, the share of positions with the same argmax.
        entropy: mean entropy of the target's distribution at temperature 1, in nats.
        factor: what the later layers write is scaled by this.
        num_positions: positions of the target's own text that both figures are means over.
    """

    acceptance: float
    entropy: float
    factor: float
    num_positions: int


class Pair:
    """A target and its draft, as they are.

    Args:
        name: what to call the pair in tables.
        tokenizer: for prompts of real text; without it, prompts are random ids.
        draft_tokenizer: the draft's own, if it differs.
        heads: draft heads of the target by kind, for methods that draft with one.
    """

    #: its heads are random, and tokens of theirs are kept by lot
    keeps_by_lot = False

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        name: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        draft_tokenizer: PreTrainedTokenizerBase | None = None,
        heads: Mapping[str, PreTrainedModel] = MappingProxyType({}),
    ):
        if target.config.is_encoder_decoder:
            raise ValueError(f"`target` is of type {type(target).__name__}: the benchmark takes decoder-only models.")
        self.target, self.draft, self.name = target, draft, name
        self.tokenizer, self.draft_tokenizer, self.heads = tokenizer, draft_tokenizer, heads
        self._ids: list[int] | None = None

    @property
    def device(self) -> torch.device:
        return self.target.device

    def prepare(self, acceptance: float | None, temperature: float) -> Calibration | None:
        """Calibrate the pair to an acceptance, if it can be calibrated."""
        if acceptance is not None:
            raise ValueError(
                f"`acceptance={acceptance}`: {self.name} has its own acceptance; only a shape can be calibrated."
            )
        return None

    def head(self, kind: str) -> PreTrainedModel:
        """The target's draft head of that kind.

        Raises:
            ValueError: it has none.
        """
        if kind not in self.heads:
            raise ValueError(
                f"`methods`: head-{kind} is for shapes, whose heads have random weights, and {self.name} has none of its kind: "
                "leave it out."
            )
        return self.heads[kind]

    def prompts(self, batch: int, length: int) -> Tensor:
        """`(batch, length)` ids, the same at each call, another text in each row."""
        if self.tokenizer is None:
            generator = torch.Generator().manual_seed(length)
            ids = torch.randint(
                1, self.target.config.get_text_config().vocab_size, (batch, length), generator=generator
            )
            return ids.to(self.device)
        if self._ids is None:
            text = "\n".join(inspect.getsource(importlib.import_module(name)) for name in TEXT_MODULES)
            self._ids = self.tokenizer(text, verbose=False).input_ids
        step = max(1, (len(self._ids) - length) // batch)
        firsts = [row * step + step // 2 for row in range(batch)]  # not at the comments that a module begins with
        rows = [(self._ids * (1 + (first + length) // len(self._ids)))[first:][:length] for first in firsts]
        return torch.tensor(rows, device=self.device)

    @property
    def max_positions(self) -> int | None:
        """The longest text that both models can take; `None` if unknown."""
        configs = (model.config.get_text_config(decoder=True) for model in (self.target, self.draft))
        known = [n for config in configs if (n := getattr(config, "max_position_embeddings", None)) is not None]
        return min(known, default=None)
