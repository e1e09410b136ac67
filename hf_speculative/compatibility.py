"""Can this draft draft for this target, and how? Answered before anything is generated, and proved by comparing logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .call import checks
from .call.draft_models import check_one_vocabulary
from .call.self_drafting import check_draft_model, tied_drafter
from .models import (
    Inputs,
    choose,
    is_tested_universal,
    prepared_inputs,
    ragged_deviation,
    text_inputs,
    tolerance,
    universal_deviation,
    why_eager,
)
from .tokenizers.vocabulary import VocabularyMatch, compare_vocabularies
from .types import Batch


@dataclass(frozen=True)
class ModelReport:
    """What `check` found out about one model.

    Attributes:
        name: its class.
        path: "ragged", "universal", or `None` where no cache of it can be taken back.
        why: the reason for the path, where it is not the ragged one.
        deviation: largest difference between logits through the cache, taken back in between, and plain ones, in standard
            deviations of the logits; `None` where that was not tried.
        eager: why its passes run eagerly even if `compile` or `cuda_graphs` is asked for; `None` where they need not.
    """

    name: str
    path: str | None
    why: str | None = None
    deviation: float | None = None
    eager: str | None = None


@dataclass(frozen=True)
class Compatibility:
    """Whether a pair works together; true in a condition if it does.

    Attributes:
        reason: why it does not, or how it does.
        target, draft: what was found out about each model.
        vocabulary: how the vocabularies compare; `None` if no tokenizers were given.
    """

    is_compatible: bool
    reason: str
    target: ModelReport
    draft: ModelReport | None = None
    vocabulary: VocabularyMatch | None = None

    def __bool__(self) -> bool:
        return self.is_compatible


def check(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    do_sample: bool = False,
    **example: Any,
) -> Compatibility:
    """Whether `draft_model` can draft for `model`, by which path and vocabulary strategy, and why.

    Each cache is tried: logits of passes over several tokens, some of them taken back, against plain ones.

    Args:
        draft_model: left out, only the target is looked at, as for prompt lookup.
        tokenizer, draft_tokenizer: of the two, where they may differ.
        do_sample: the strategy for vocabularies that differ depends on it.
        **example: what `model.generate` would get, for a model that takes more than token ids (`input_features=...`).

    Raises:
        TypeError: something given is no transformers model.
        ValueError: the model needs an `example` of its inputs.
    """
    target = checks.unwrap(model, "model")
    report, reason = _report(target, "model", example)
    if draft_model is None or reason is not None:
        return Compatibility(reason is None, reason or _summary(report), report)
    draft = checks.unwrap(draft_model, "draft_model")
    try:
        check_draft_model(target, draft)
        if tokenizer is None or draft_tokenizer is None:
            check_one_vocabulary(target, draft)
    except ValueError as error:
        return Compatibility(False, str(error), report, ModelReport(type(draft).__name__, None))
    if tied_drafter(draft) is not None:
        other = ModelReport(type(draft).__name__, "ragged", "reads the target's own states")
    else:
        other, reason = _report(draft, "draft_model", example if draft.main_input_name in example else {})
    match = None
    if tokenizer is not None and draft_tokenizer is not None:
        size, draft_size = (one.config.get_text_config(decoder=True).vocab_size for one in (target, draft))
        match = compare_vocabularies(tokenizer, draft_tokenizer, size, draft_size, do_sample)
        if reason is None and match.strategy is None:
            reason = match.reason
    summary = reason or f"{_summary(report)}; draft: {_summary(other)}"
    return Compatibility(reason is None, summary, report, other, match)


def _summary(report: ModelReport) -> str:
    return f"{report.name} takes the {report.path} path" + (f", it {report.why}" if report.why else "")


def _report(model: PreTrainedModel, argument: str, example: dict[str, Any]) -> tuple[ModelReport, str | None]:
    """What is found out about a model, and why it does not work."""
    name = type(model).__name__
    try:
        checks.check_model(model, argument)
    except ValueError as error:
        return ModelReport(name, None), str(error)
    path = choose(model)
    with torch.no_grad():
        if path.name == "ragged" and not example:
            deviation = ragged_deviation(model)
        else:
            deviation = universal_deviation(model, _example_inputs(model, argument, example), is_draft=True)
    kind = "universal" if example else path.name
    why = path.reason or ("is given more than ids" if kind == "universal" else None)
    # In half precision, recurrences differ between one long pass and many short ones by rounding alone.
    is_tested = kind == "universal" and model.dtype != torch.float32 and is_tested_universal(model)
    if is_tested or deviation <= tolerance(model):
        eager = why_eager(model) if kind == "ragged" else "takes the universal path, whose passes differ in shape"
        return ModelReport(name, kind, why, deviation, eager), None
    reason = f"`{argument}`: {name} {why}, and gives other logits when its cache is taken back (by {deviation:.2g} deviations)"
    return ModelReport(name, None, why, deviation), reason


def _example_inputs(model: PreTrainedModel, argument: str, example: dict[str, Any]) -> Inputs:
    if example:
        return prepared_inputs(model, example)
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"`{argument}`: {type(model).__name__} reads `{model.main_input_name}`: pass an example, as in "
            f"check(..., {model.main_input_name}=...)."
        )
    config = model.config.get_text_config(decoder=not model.config.is_encoder_decoder)
    ids = torch.randint(config.vocab_size, (2, 8), generator=torch.Generator().manual_seed(0)).to(model.device)
    if model.config.is_encoder_decoder:
        return prepared_inputs(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return text_inputs(model, Batch(ids, [0, 0], max_length=16))
