"""Load the drafts of an evaluation, by name, each once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.attached import attached_to
from ..call.option_table import DRAFTS
from ..call.preparation import load_draft
from ..call.sources import source_of
from ..tokenizers.loading import tokenizer_of_draft


@dataclass(frozen=True)
class NamedDraft:
    """A draft of an evaluation.

    Attributes:
        model: a model, or a source of drafts.
        tokenizer: its own, if its vocabulary is not the target's.
        source: its Hub name or folder, `""` if unknown.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase | None = None
    source: str = ""

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        tokenizer = {} if self.tokenizer is None else {"assistant_tokenizer": self.tokenizer}
        return {"draft_model": self.model, **tokenizer}


#: a model, the name of a model or method, a list of these, or models by names of the user's
Drafts: TypeAlias = (
    "PreTrainedModel | str | Sequence[PreTrainedModel | str] | Mapping[str, PreTrainedModel | NamedDraft | str] | None"
)


def named_drafts(
    given: Drafts,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft_tokenizers: Mapping[str, PreTrainedTokenizerBase],
) -> tuple[dict[str, NamedDraft], list[str]]:
    """Return the drafts by name, and methods that need no draft model. Default: what is attached.

    Raises:
        ValueError: two have the same name, or a tokenizer belongs to no draft.
    """
    if given is None:
        given, config = attached_to(target)
        own = None if config is None else config.draft_tokenizer
        if isinstance(given, PreTrainedModel) and own is not None:
            draft_tokenizers = {_name(given): own, **draft_tokenizers}
        elif given is not None and not isinstance(given, (str, PreTrainedModel)):
            given = {"attached": NamedDraft(given, own)}  # tables, a drafter, or several sources
    methods: list[str] = []
    if given is None:
        pairs: list[tuple[str, PreTrainedModel | NamedDraft | str]] = []
    elif isinstance(given, Mapping):
        pairs = list(given.items())
        for name in filter(DRAFTS.is_method, given):
            raise ValueError(f"a draft is called {name!r}, which is a method: give it another name.")
    else:
        models = list(given) if isinstance(given, (list, tuple)) else [given]
        methods = [str(model) for model in models if DRAFTS.is_method(model)]
        pairs = [(_name(model), model) for model in models if not DRAFTS.is_method(model)]
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"two drafts are called {', '.join(names)}: pass `draft_model={{name: model}}`.")
    if unknown := sorted(draft_tokenizers.keys() - set(names)):
        raise ValueError(f"`draft_tokenizers` names {', '.join(unknown)}, the drafts are {', '.join(names) or 'none'}.")
    drafts = {name: _draft(model, target, tokenizer, draft_tokenizers.get(name)) for name, model in pairs}
    return drafts, methods


def _draft(given, target, tokenizer, draft_tokenizer) -> NamedDraft:
    if isinstance(given, NamedDraft):
        return given
    if draft_tokenizer is None and isinstance(given, str):
        draft_tokenizer = tokenizer_of_draft(given, tokenizer)
    model: Any = load_draft(given, target)
    checks.check_source(source_of("draft_model", model), checks.unwrap(target, "model"))
    source = given if isinstance(given, str) else getattr(getattr(model, "config", None), "name_or_path", "")
    return NamedDraft(model, draft_tokenizer, source)


def _name(model: PreTrainedModel | str) -> str:
    if isinstance(model, str):
        return model
    model = checks.unwrap(model, "draft_model")
    checks.check_type(model, "draft_model")
    return Path(model.config.name_or_path).name or "draft"
