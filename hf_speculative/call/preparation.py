"""Prepare a call: from the keywords of `generate` to checked options, and the keywords for transformers."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from ..distributed.synced_gpus import check_synced, models_in_step
from ..drafting.tables import Tables, TablesSource, holds_tables
from ..drafting.wrapped import Nothing
from ..models import device_of
from ..models.loading import load_model
from ..models.model_state import loaded_for
from . import checks, input_checks
from .configuration import Options, SpeculativeConfig, setting_of, with_settings
from .option_table import DRAFTS, checked as checked_option
from .option_types import close_to
from .options import check_names, plain_kwargs, read_options, without_draft


def checked(model, plain_generate, kwargs: dict, attached_draft, attached_config) -> tuple[Options | None, dict]:
    """The options of a call, `None` for a plain one, and the keywords for transformers' `generate`."""
    input_checks.check_ids(kwargs)
    options = prepare(model, kwargs, attached_draft, attached_config)
    if options is None:
        return None, plain_kwargs(model, kwargs, attached_config)
    input_checks.check_inputs(options, checks.unwrap(model, "model"))
    return options, _healed(model, plain_generate, with_stop_strings(model, options), options)


def prepare(model, kwargs: dict[str, Any], attached_draft, attached_config) -> Options | None:
    """One call's options, checked; `None` if nothing asks for speculation."""
    target = checks.unwrap(model, "model")
    check_names(target, kwargs)
    draft, config = load_draft(attached_draft, target), attached_config or SpeculativeConfig()
    options = read_options(model, kwargs, draft, config, load_draft)
    if options is None:
        return None
    checks.check_options(options)
    checks.check_model(target, "model")
    source = options.source
    part_of_target = source.argument if source.runs_target else None
    check_synced(options["synced_gpus"], target, source.draft_model, part_of_target)
    checks.check_source(source, target)
    source.check_ids(target)
    checks.warn_of_size(source, target)
    return _within_longest(options, target)


def prepare_rounds(model, kwargs: dict[str, Any], attached_draft, attached_config) -> Options:
    """The same for rounds of our own, in which nothing is drafted if nothing asks for a draft."""
    options = prepare(model, kwargs, attached_draft, attached_config)
    if options is None:
        config = without_draft(attached_config or SpeculativeConfig())
        options = prepare(model, kwargs | {"draft_model": Nothing()}, None, config)
    assert options is not None
    return options


def _within_longest(options: Options, target: PreTrainedModel) -> Options:
    """Limit the default number of draft tokens to what the source can propose; refuse an explicit larger one."""
    longest, num_tokens = options.source.max_draft_tokens(target), options.num_draft_tokens
    if longest is None:
        return options
    if options.length_is_default:
        return replace(options, num_draft_tokens=longest)
    if num_tokens > longest and not options.source.counts_nodes:
        most = f"the draft that `{options.source.argument}` names proposes at most {longest} tokens a round"
        raise ValueError(f"`num_draft_tokens={num_tokens}`: {most}: give 1 to {longest}, or leave it out.")
    return options


def with_stop_strings(model, options: Options) -> dict[str, Any]:
    """Make the criterion of stop strings, whose tokenizer transformers' hook drops."""
    kwargs = dict(options.generate_kwargs)
    stop_strings = setting_of(model, kwargs, "stop_strings")
    if stop_strings is None:
        return kwargs
    if options.config.tokenizer is None:
        raise ValueError(f"`stop_strings={stop_strings!r}` needs the text: pass `tokenizer=` as well.")
    kwargs = with_settings(model, kwargs, {"stop_strings": None})
    criteria = list(kwargs.get("stopping_criteria") or [])
    if not any(type(criterion) is StopStringCriteria for criterion in criteria):  # which takes the place of ours
        criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=options.config.tokenizer))
    kwargs["stopping_criteria"] = StoppingCriteriaList(criteria)
    return kwargs


def _healed(model, plain_generate, kwargs: dict[str, Any], options: Options) -> dict[str, Any]:
    """Apply `token_healing`, which needs the tokenizer: plain decoding chooses the last token of each prompt again."""
    if not setting_of(model, kwargs, "token_healing"):
        return kwargs
    if models_in_step(options["synced_gpus"], model, options.source.draft_model):
        raise ValueError("`token_healing=True` runs the model once a row, and ranks would lose step: leave it out.")
    name, tokenizer = "inputs" if kwargs.get("inputs") is not None else "input_ids", options.config.tokenizer
    ids = kwargs.get(name)
    input_checks.check_healing(model, kwargs, ids, tokenizer)
    assert ids is not None
    settings: dict[str, Any] = {"token_healing": False}
    copies = setting_of(model, kwargs, "num_return_sequences") or 1
    if copies > 1 and setting_of(model, kwargs, "do_sample"):  # plain decoding heals each of them for itself
        of_rows = {n: v for n, v in kwargs.items() if isinstance(v, torch.Tensor) and v.shape[:1] == ids.shape[:1]}
        kwargs = kwargs | {name: value.repeat_interleave(copies, 0) for name, value in of_rows.items()}
        ids, settings = kwargs[name], settings | {"num_return_sequences": 1}
    healed = GenerationMixin.heal_tokens(SimpleNamespace(generate=plain_generate), ids, tokenizer)
    input_checks.check_healed(healed, ids)
    mask = kwargs.get("attention_mask")
    prompt = {name: healed, "attention_mask": torch.ones_like(healed) if mask is None else mask}
    return with_settings(model, kwargs | prompt, settings)


def load_draft(draft_model, target: PreTrainedModel) -> Any:
    """Check the `draft_model` of a call or of `attach`, and load it if it is a name.

    A name is loaded once per target, with its dtype, and follows it to its device.
    """
    draft_model = checked_option("draft_model", draft_model)
    draft, methods = DRAFTS.split(draft_model)
    if isinstance(draft, str):
        draft = _loaded_by_name(draft, target)
    elif isinstance(draft, torch.nn.Module):
        draft = checks.unwrap(draft, "draft_model")
        checks.check_type(draft, "draft_model")
    if draft is None:
        return methods
    return draft if methods is None else (draft, methods)


def _written(folder: Path) -> int:
    """When the newest file of a draft was written, in nanoseconds; 0 for the name of a repository."""
    times = [0]
    for file in folder.glob("*"):
        if file.suffix in (".safetensors", ".bin") or file.name == "config.json":
            with suppress(OSError):  # a link that leads nowhere, or a file that is being replaced
                times.append(file.stat().st_mtime_ns)
    return max(times)


def _loaded_by_name(name: str, target: PreTrainedModel) -> PreTrainedModel | TablesSource:
    drafts = loaded_for(target)
    written = _written(Path(name))
    if drafts.setdefault(("written", name), written) != written:  # trained again
        drafts["written", name] = written
        drafts.pop(name, None)
    if name not in drafts and holds_tables(name):
        drafts[name] = TablesSource(Tables.load(Path(name)))
    if name not in drafts:
        try:
            loaded = load_model(name, dtype=target.dtype)
        except (OSError, ValueError) as error:
            meant = close_to(name, DRAFTS.methods)
            hint = f" Did you mean {meant!r}?" if meant else ""
            raise ValueError(f"`draft_model={name!r}` cannot be loaded: {error}{hint}") from error
        drafts[name] = loaded
    draft, device = drafts[name], device_of(target)
    return draft.to(device) if isinstance(draft, PreTrainedModel) and device_of(draft) != device else draft
