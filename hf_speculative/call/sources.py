"""Find the source of drafts that a call asks for; the sources lie in `drafting/`, one file each."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from transformers import PreTrainedModel

from ..distributed.tensor_parallel import all_ranks_draft
from ..drafting import texts
from ..drafting.dflash import DFlashSource, DSparkSource
from ..drafting.draft_model import DraftModelSource
from ..drafting.eagle3 import Eagle3Source, PEagleSource
from ..drafting.early_exit import EarlyExitSource
from ..drafting.gemma4_assistant import Gemma4AssistantSource
from ..drafting.hybrid import HybridSource
from ..drafting.mtp import MtpHeadSource, MtpSource
from ..drafting.source import DraftSource, OwnDrafterSource
from ..names import AND
from .option_table import CONFIG, CONFIGURED_SOURCES, DRAFTS, OPTIONS, REFUSED, checked

#: by what they are asked for: a model, an option of transformers, the name of a method
OF_MODELS = (DSparkSource, DFlashSource, PEagleSource, Eagle3Source, Gemma4AssistantSource, MtpHeadSource, DraftModelSource)
OF_TRANSFORMERS = (EarlyExitSource, texts.PromptLookupSource, texts.NgramSource, MtpSource)
OF_TEXTS = (texts.SuffixSource, texts.RecyclingSource, texts.AutoSource, texts.GrammarSource)
#: in the order in which values are matched and a `generation_config` is read
SOURCES: tuple[type[DraftSource], ...] = (*OF_MODELS, *OF_TRANSFORMERS, *OF_TEXTS, OwnDrafterSource)


def source_of(argument: str, value, options: dict[str, Any] | None = None) -> DraftSource:
    """The source that `value`, given as `argument`, asks for.

    Args:
        options: values of options by name; those of other sources and `None` are left out. And `in_call`, see `DraftSource`.

    Raises:
        ValueError, TypeError: a value out of range, of another type, or without effect.
    """
    value = checked(argument, value)
    if argument != "draft_model":
        return _one_source_of(argument, value, options)
    drafter, methods = DRAFTS.split(value)
    guessing = [_one_source_of(argument, name, options) for name in methods.split(AND)] if methods else []
    guesses = texts.SeveralSource(guessing) if len(guessing) > 1 else next(iter(guessing), None)
    if drafter is None:
        return cast(DraftSource, guesses)
    if not isinstance(drafter, DraftSource):
        own = _one_source_of(argument, drafter, options)
    else:
        given: dict[str, Any] = _given(type(drafter), options) if is_dataclass(drafter) else {}
        own = replace(cast(Any, drafter), **given) if given else drafter
    return own if guesses is None else HybridSource(cast(texts.GuessingSource, guesses), own)


def with_guesses(source: DraftSource, model: PreTrainedModel, has_grammar: bool, is_free: bool) -> DraftSource:
    """Add drafts that cost no pass to a source: what the call's grammar forces, and copies.

    Drafts that all ranks of a tensor parallel model make stay alone: each rank would choose between both by its own clock.

    Args:
        model: the target.
        is_free: copies may be added, since nothing says how to draft.

    Raises:
        ValueError: there is no grammar, and nothing else was asked for.
    """
    if not has_grammar and isinstance(source, texts.GrammarSource):
        raise ValueError("`draft_model='grammar'` drafts what a grammar forces: give `grammar=` as well.")
    if source.parts or isinstance(source, texts.GuessingSource):  # guesses heed the grammar anyway
        return source
    if all_ranks_draft(model, source.draft_model, source.reads_target):
        return source
    if is_free and source.takes_guesses:
        return HybridSource(texts.AutoSource(texts.AutoSource.method), source)
    return HybridSource(texts.GrammarSource(texts.GrammarSource.method), source) if has_grammar else source


def _one_source_of(argument: str, value, options: dict[str, Any] | None) -> Any:
    kind = next(kind for kind in SOURCES if kind.argument == argument and kind.takes(value))
    return kind(value, **_given(kind, options))  # type: ignore[call-arg]


def _given(kind: type, options: dict[str, Any] | None) -> dict[str, Any]:
    names = [field.name for field in fields(kind)[1:]]
    return {name: option for name, option in (options or {}).items() if name in names and option is not None}


def is_configured(generation_config) -> bool:
    """Whether a `generation_config` asks for drafts."""
    return any(getattr(generation_config, name, None) for name in CONFIGURED_SOURCES)


def asked_with(option: str) -> list[str]:
    """How the sources to which an option belongs are asked for."""
    return list(dict.fromkeys(kind.asked_by() for kind in SOURCES if option in kind.options()))


#: fields of `SpeculativeConfig` that belong to some sources only
SETTINGS_OF_ONE = tuple(
    option.name for option in OPTIONS if CONFIG in option.places and option.without_draft == REFUSED and asked_with(option.name)
)
