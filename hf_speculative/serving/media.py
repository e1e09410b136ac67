"""Requests with images or recordings: read their prompts apart, and run their rows beside all others."""

import copy

from transformers import PreTrainedModel

from ..call.configuration import Options
from ..interfaces import CachedModel
from ..models import MultimodalModel, is_recurrent, is_tested_multimodal, is_tested_universal
from ..types import Batch, Prefix
from .requests import Request
from .rows import Rows


def takes_media(model: PreTrainedModel, options: Options) -> bool:
    """Whether an engine for `model` runs such requests; known types alone, since a trial would need the model for itself."""
    source, is_known = options.source, is_tested_universal(model) and is_tested_multimodal(model)
    reads_target = source.reads_target or source.needs_ragged
    return is_known and not (reads_target or options.is_bitwise or is_recurrent(model))


def read_prompt(model: PreTrainedModel, target: CachedModel, batch: Batch, request: Request) -> None:
    """Let the only row of `batch`, which is unread, begin with all of its prompt but the last token."""
    reader, row = MultimodalModel(model, request.inputs), copy.copy(batch)
    reader.logits(row, ahead=0, num_last=1)
    row.prefixes = [Prefix(0, len(request.ids) - 1)]
    target.share(reader, row)
    reader.release()


def admit(model: PreTrainedModel, target: CachedModel, newcomers: Rows, lanes: list[int]) -> None:
    """`target.admit`, also of a request with an image."""
    if not newcomers.has_media:
        type(target).admit(target, newcomers, lanes)
        return
    fresh = target.fresh()
    read_prompt(model, fresh, newcomers, newcomers.running[newcomers.rows[0]])
    fresh.prefill(newcomers)
    target.num_forwards = fresh.num_forwards
    target.take(fresh, lanes)
