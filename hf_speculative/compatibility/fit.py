"""Find the path of a model, and prove it by comparing logits, with rollbacks in between, with plain ones."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from transformers import PreTrainedModel

from .. import models
from ..call import checks
from ..models.execution import described_passes


@dataclass(frozen=True)
class ModelReport:
    """What `check` found out about one model.

    Attributes:
        name: its class's name.
        path: "ragged", "universal", or `None` if it has no cache that can be rolled back.
        why: the reason, if the path is not the ragged one.
        deviation: largest difference between plain logits and those through the cache with rollbacks in between, in standard
            deviations of the logits; `None` if not tried.
        linears: what multiplies in its linear layers.
        passes: how its passes run once it is attached, on the ragged path.
    """

    name: str
    path: str | None
    why: str | None = None
    deviation: float | None = None
    linears: str | None = None
    passes: str | None = None


def report_of(model: PreTrainedModel, argument: str, example: dict[str, Any]) -> tuple[ModelReport, str | None]:
    """What is found about a model, and why it does not work."""
    name = type(model).__name__
    try:
        checks.check_model(model, argument)
    except ValueError as error:
        return ModelReport(name, None), str(error)
    path = models.choose(model)
    with torch.no_grad():
        by_modules = models.is_tested_ragged(model, by_type=True) and not models.has_tested_modules(model)
        if not example and (path.name == "ragged" or by_modules):
            deviation = models.ragged_deviation(model)
        else:
            inputs = _example_inputs(model, argument, example)
            path = models.choose_for(model, inputs) if example or model.config.is_encoder_decoder else path
            cached = models.multimodal_class_for(inputs) if path.has_media else models.UniversalModel
            deviation = models.universal_deviation(model, inputs, is_draft=True, make_cached=cached)
    kind, why = path.name, path.reason
    # In half precision, recurrences differ between one long pass and many short ones by rounding alone.
    is_tested = kind == "universal" and model.dtype != torch.float32 and models.is_tested_universal(model)
    if not is_tested and deviation > models.tolerance(model):
        changed = f"its logits change when its cache goes back (by {deviation:.2g} standard deviations)"
        way = f"{why or 'does not fit its cache'}, and {changed}{checks.quantised_inputs(model)}"
        return ModelReport(name, None, why, deviation), f"`{argument}`: {name} {way}"
    with models.without_dropout(model) if argument == "draft_model" else nullcontext():  # as in a call
        passes = described_passes(model) if kind == "ragged" else None
    return ModelReport(name, kind, why, deviation, models.linears.describe(model), passes), None


def _example_inputs(model: PreTrainedModel, argument: str, example: dict[str, Any]) -> models.Inputs:
    if example:
        return models.prepared_inputs(model, example)
    if model.main_input_name != "input_ids":
        raise ValueError(f"`{argument}`: {type(model).__name__} reads `{model.main_input_name}`: pass an example.")
    config = model.config.get_text_config(decoder=not model.config.is_encoder_decoder)
    ids = torch.randint(config.vocab_size, (2, 8), generator=torch.Generator().manual_seed(0)).to(model.device)
    return models.prepared_inputs(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def notes_on(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[str, ...]:
    """Sentences on what is likely to cost acceptance."""
    wanted, name = made_for(draft), target.config.name_or_path
    if not wanted or not name or PurePath(wanted).name.lower() == PurePath(name).name.lower():
        return ()
    return (f"the draft names {wanted} as the target it was made for, and this one is {name}: give that one",)


def made_for(draft: PreTrainedModel) -> str | None:
    """The target that a draft's config names: speculators' verifier, or the base model of an adapter."""
    verifier: Any = getattr(draft.config, "speculators_config", None) or {}
    verifier = verifier.get("verifier", {}) if isinstance(verifier, dict) else {}
    return verifier.get("name_or_path") or getattr(draft.config, "base_model_name_or_path", None)
