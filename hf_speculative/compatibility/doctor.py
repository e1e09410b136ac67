"""Is it the right head, read the right way? A head whose first tokens are seldom kept is read in other ways as well.

Which hidden states a head reads is an index in its config, and publishers count differently: states before a layer or after it.
The residual's flag has different defaults. Either mistake runs without an error and costs most of the acceptance (vLLM
PR#43671, sglang PR#25454). So the indices one off, both ways, and the flag flipped are tried on the same text.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..call import checks
from ..call.sources import source_of
from ..hf_compat import attention_name, set_attention_name
from ..reports.formats import percent
from .running import Candidate
from .trials import Trial

#: fields of heads' configs that say which of the target's states are read, and flags that files are known to get wrong
LAYERS, FLAGS = ("eagle_aux_hidden_state_layer_ids", "target_layer_ids"), ("norm_before_residual",)
#: below this share of first tokens kept a head is examined
POOR = 0.5
#: another reading fits better if it keeps this many more of the first tokens, and so many standard errors more
LEAST_GAIN, STANDARD_ERRORS = 0.1, 2.0


@dataclass(frozen=True)
class Examination:
    """What became of reading a head in other ways than its config says.

    Attributes:
        named: the greedy trial of the head as its config says.
        others: the same text with other values of the config's fields: `Trial.options` has them beside `draft_model`.
    """

    named: Trial
    others: tuple[Trial, ...]

    @property
    def better(self) -> Trial | None:
        """The reading that clearly fits better than the one named; `None` if none does."""
        best = max(self.others, key=first_kept, default=None)
        if best is None:
            return None
        shares = first_kept(self.named), first_kept(best)
        variance = sum(p * (1 - p) / max(1, t.num_drafts) for p, t in zip(shares, (self.named, best), strict=True))
        gain = shares[1] - shares[0]
        return best if gain > max(LEAST_GAIN, STANDARD_ERRORS * variance**0.5) else None

    @property
    def verdict(self) -> str:
        """The finding in a sentence or two."""
        kept = f"Read as its config says, {percent(first_kept(self.named))} of the head's first tokens are kept"
        if self.better is None:
            return (
                f"{kept}, and no other reading fits better: if much more was promised, it is another target, another version "
                "of it or another chat format that the head was trained for."
            )
        wanted = ", ".join(f"{name}={value}" for name, value in changed(self.better).items())
        return (
            f"{kept}, and {percent(first_kept(self.better))} with {wanted}: the config is wrong. Write that into the head's "
            "config.json, or set it in `head.config` and save the head anew."
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        better = self.better and changed(self.better)
        readings = [{"fields": changed(trial), "first_kept": first_kept(trial)} for trial in (self.named, *self.others)]
        return {"verdict": self.verdict, "better": better, "readings": readings}


def first_kept(trial: Trial) -> float:
    """Share of drafts whose first token was kept."""
    return trial.acceptance[0] if trial.acceptance else 0.0


def changed(trial: Trial) -> dict[str, Any]:
    """The fields of the head's config that a reading changes."""
    return {name: value for name, value in trial.options.items() if name in (*LAYERS, *FLAGS)}


def is_poor(trial: Trial) -> bool:
    return trial.failure is None and trial.num_drafts > 0 and first_kept(trial) < POOR


def other_readings(named: Candidate, target: PreTrainedModel) -> list[Candidate]:
    """The head of a candidate read in other ways that the target has the states for; none for a draft that is no head."""
    head = named.source.draft_model
    if head is None or getattr(head, "hf_quantizer", None) is not None:
        return []
    found = []
    for fields in _variations(head.config, target):
        model = read_as(head, fields)
        source = source_of("draft_model", model)
        try:
            checks.check_source(source, target)
        except ValueError:  # there is no such state
            continue
        found.append(Candidate(source, named.options | fields, {"draft_model": model}))
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
