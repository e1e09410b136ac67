"""What the hardware can do: bare forward passes through a prefilled cache, and the bandwidth of its memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..models import choose
from ..reports.timing import timed
from .cells import Cell
from .pairs import Pair


@dataclass
class Passes:
    """Bare passes of both models, through transformers' own cache, at a cell's batch and context.

    Attributes:
        target, verify, draft: seconds of a target pass over one token a row, of a target pass over `num_draft_tokens + 1`, and
            of a draft pass over one, all rows of the batch together.
        target_weight_bytes, draft_weight_bytes: weights that one pass reads.
        target_cache_bytes, draft_cache_bytes: keys and values that one pass reads, of the whole batch.
    """

    num_draft_tokens: int
    target_weight_bytes: int
    draft_weight_bytes: int
    target_cache_bytes: int
    draft_cache_bytes: int
    target: list[float] = field(default_factory=list)
    verify: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)

    @property
    def target_seconds(self) -> float:
        return statistics.median(self.target)

    @property
    def verify_seconds(self) -> float:
        return statistics.median(self.verify)

    @property
    def draft_seconds(self) -> float:
        return statistics.median(self.draft)

    def target_seconds_of(self, num_columns: float) -> float:
        """Seconds of a pass of any width, on the line through the two widths measured."""
        a_column_more = (self.verify_seconds - self.target_seconds) / self.num_draft_tokens
        return self.target_seconds + (num_columns - 1) * a_column_more

    def bytes_read(self, num_draft_passes: float) -> float:
        """Weights and cache that a round reads: the target's once, the draft's once a draft pass."""
        target = self.target_weight_bytes + self.target_cache_bytes
        return target + num_draft_passes * (self.draft_weight_bytes + self.draft_cache_bytes)

    def to_dict(self) -> dict:
        medians = {
            "target_seconds": self.target_seconds,
            "verify_seconds": self.verify_seconds,
            "draft_seconds": self.draft_seconds,
        }
        return medians | vars(self)


def theoretical_speedup(
    tokens_per_round: float, draft_passes: float, columns: float, passes: Passes, plain_seconds: float | None = None
) -> float:
    """E[tokens a round] P / (k T_draft(1) + T_target(k + 1)), all times measured.

    (Leviathan et al. 2023, Theorem 3.8, with a verification that may cost more than a plain step.)

    Args:
        tokens_per_round: mean acceptance length, bonus token included.
        draft_passes: draft passes a round, k.
        columns: positions that the target scores in a round, k + 1.
        plain_seconds: P, what plain decoding takes for a token; default: its bare pass, T_target(1).
    """
    round_seconds = draft_passes * passes.draft_seconds + passes.target_seconds_of(columns)
    return tokens_per_round * (plain_seconds or passes.target_seconds) / round_seconds


class PassTimer:
    """Both models behind prefilled caches, ready to be timed.

    Raises:
        ValueError: a model's own cache cannot be rolled back, so a pass cannot be repeated.
    """

    def __init__(self, pair: Pair, cell: Cell, num_cached: int):
        for role, model in (("target", pair.target), ("draft", pair.draft)):
            if (path := choose(model)).name != "ragged":
                raise ValueError(f"the {role}, {type(model).__name__}, {path.reason}")
        self.num_cached = num_cached
        ids = pair.prompts(cell.batch, num_cached)
        self.target, self.draft = _Prefilled(pair.target, ids), _Prefilled(pair.draft, ids)
        self.widths = (1, cell.num_draft_tokens + 1)
        self.passes = Passes(
            num_draft_tokens=cell.num_draft_tokens,
            target_weight_bytes=weight_bytes(pair.target),
            draft_weight_bytes=weight_bytes(pair.draft),
            target_cache_bytes=self.target.cache_bytes,
            draft_cache_bytes=self.draft.cache_bytes,
        )
        self._once()  # warm-up
        for times in (self.passes.target, self.passes.verify, self.passes.draft):
            times.clear()

    def measure(self, times: int = 3) -> None:
        for _ in range(times):
            self._once()

    def _once(self) -> None:
        self.passes.target.append(self.target.seconds(self.widths[0]))
        self.passes.verify.append(self.target.seconds(self.widths[1]))
        self.passes.draft.append(self.draft.seconds(1))


class _Prefilled:
    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, ids: Tensor):
        self.model, self.ids = model, ids
        self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        model(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache.activate_past_recording()  # layers with a window could not be cropped
        own = [layer for layer in self.cache.layers if layer.keys is not None]  # others read the keys of these
        self.cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in own)

    @torch.no_grad()
    def seconds(self, width: int) -> float:
        ids = self.ids[:, :1].repeat(1, width)
        _, spent = timed(lambda: self.model(ids, past_key_values=self.cache, use_cache=True), ids.device)
        self.cache.crop(-width)
        return spent


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that a pass reads: all but an input embedding, of which it reads a row a token."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    total = sum(parameter.nbytes for parameter in model.parameters())
    is_read = head is not None and head.weight is embedding.weight
    return total if is_read else total - embedding.weight.nbytes


def copy_bandwidth(device: torch.device, num_bytes: int | None = None) -> float:
    """Bytes a second in a large `copy_` on the device, reading and writing both counted; median of 5."""
    num_bytes = num_bytes or 2 ** (30 if device.type == "cuda" else 27)  # far beyond any cache
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * num_bytes / statistics.median(timed(lambda: target.copy_(source), device)[1] for _ in range(5))
