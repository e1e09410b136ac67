"""Examine a head whose first tokens are seldom accepted: try other readings of its config.

Which hidden states a head reads is an index in its config, and publishers count differently: states before a layer or after it.
The residual's flag has different defaults. Either mistake runs without an error and costs most of the acceptance (vLLM
PR#43671, sglang PR#25454). So the indices one off, both ways, and the flag flipped are tried on the same text.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..call import checks
from ..call.sources import source_of
from ..hf_compat import attention_name, set_attention_name
from ..measuring.results import Totals
from ..reports.formats import percent

#: fields of heads' configs that say which of the target's states are read, and flags that files are known to get wrong
LAYERS, FLAGS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids"), ("norm_before_residual",)
#: below this share of first tokens kept a head is examined
POOR = 0.5
#: another reading fits better if it keeps a larger share of first tokens: by LEAST_GAIN, and by this many standard errors
LEAST_GAIN, STANDARD_ERRORS = 0.1, 2.0


@dataclass(frozen=True)
class Reading:
    """A head, read in one way.

    Attributes:
        fields: of the head's config that it changes.
        num_drafts: rounds in which something was drafted.
        first_kept: share of them whose first token was kept.
    """

    fields: dict[str, Any]
    num_drafts: int
    first_kept: float

    @classmethod
    def of(cls, fields: dict[str, Any], totals: Totals) -> "Reading":
        """From what was counted under a setting."""
        counts = totals.statistics
        rates = counts.per_position_acceptance_rate if counts is not None else []
        return cls(fields, counts.num_spec_steps if counts is not None else 0, rates[0] if rates else 0.0)

    @property
    def is_poor(self) -> bool:
        """So few tokens are kept that the head may be misread."""
        return self.num_drafts > 0 and self.first_kept < POOR


@dataclass(frozen=True)
class Examination:
    """What became of reading a head in other ways than its config says, on the same texts.

    Attributes:
        named: as its config says.
        others: with other values of the config's fields.
    """

    named: Reading
    others: tuple[Reading, ...]

    @property
    def better(self) -> Reading | None:
        """The reading that clearly fits better than the one named; `None` if none does."""
        best = max(self.others, key=lambda reading: reading.first_kept, default=None)
        if best is None:
            return None
        variance = sum(r.first_kept * (1 - r.first_kept) / max(1, r.num_drafts) for r in (self.named, best))
        gain = best.first_kept - self.named.first_kept
        return best if gain > max(LEAST_GAIN, STANDARD_ERRORS * variance**0.5) else None

    @property
    def verdict(self) -> str:
        """The finding in a sentence or two."""
        kept = f"Read as its config says, {percent(self.named.first_kept)} of the head's first tokens are kept"
        if self.better is None:
            return f"{kept}, and no other reading fits better. If more was promised, it is for another target."
        wanted = ", ".join(f"{name}={value}" for name, value in self.better.fields.items())
        way_out = "Write that into the head's config.json, or set it in `head.config` and save the head anew."
        return f"{kept}, and {percent(self.better.first_kept)} with {wanted}: the config is wrong. {way_out}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        readings = [{"fields": one.fields, "first_kept": one.first_kept} for one in (self.named, *self.others)]
        return {"verdict": self.verdict, "better": self.better and self.better.fields, "readings": readings}


def other_readings(head: PreTrainedModel | None, target: PreTrainedModel) -> list[tuple[dict[str, Any], PreTrainedModel]]:
    """Fields of a head's config, and the head read by them, where the target has the states; none for a draft model."""
    if head is None or getattr(head, "hf_quantizer", None) is not None:
        return []
    found = []
    for fields in _variations(head.config, target):
        model = read_as(head, fields)
        try:
            checks.check_source(source_of("draft_model", model), target)
        except ValueError:  # there is no such state
            continue
        found.append((fields, model))
    return found


def _variations(config, target: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Values of a head's fields: indices one off, flags flipped, both."""
    name = next((name for name in LAYERS if hasattr(config, name)), None)
    if name is None:
        return
    ids = getattr(config, name)
    if ids is None:
        ids = config.layers_read(target.config.get_text_config(decoder=True).num_hidden_layers)
    flags = {flag: not getattr(config, flag) for flag in FLAGS if hasattr(config, flag)}
    for step in (0, -1, 1):
        moved = {name: [index + step for index in ids]} if step else {}
        if min(ids) + step >= 0:
            yield from filter(None, (moved, moved | flags if flags else None))


def read_as(head: PreTrainedModel, fields: dict[str, Any]) -> PreTrainedModel:
    """The head by a config with other `fields`, on the very same tensors."""
    config = copy.deepcopy(head.config)
    for name, value in fields.items():
        setattr(config, name, value)
    set_attention_name(config, attention_name(head.config))
    with torch.device("meta"):
        other = type(head)(config).eval()
    for path, module in head.named_modules():
        own = other.get_submodule(path)
        for kind in ("_parameters", "_buffers"):
            getattr(own, kind).update(getattr(module, kind))
    return other
