"""Sources that draft from texts, without a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..forwarding import to_each
from ..interfaces import Schedule
from ..models import num_logits
from ..models.model_state import kept_with, loaded_for
from ..names import AND
from ..schedules import BestNodes
from ..tokenizers.loading import tokenizer_of
from .mtp import MtpSource
from .proposers import CorpusSuffix, PromptSuffix, Proposer, Recycling
from .source import BuildContext, DraftSource
from .suffix.store import SuffixStore
from .tree_drafter import TreeDrafter

#: a file or folder, texts and files, or a store
Corpus: TypeAlias = "str | os.PathLike | Sequence[str | os.PathLike] | SuffixStore"
#: of `suffix`, as in vLLM: draft tokens for each one that matched, and the share of cases in which all of a draft followed
MAX_FACTOR, MIN_SHARE = 1.0, 0.1
#: that nothing of a corpus is dropped
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, eq=False)
class GuessingSource(DraftSource):
    """Guesses that cost no pass, grown to trees. What is learned about them is kept with the model."""

    given: Any

    most_tokens, ends_early = 64, False

    @classmethod
    def takes(cls, value) -> bool:
        return cls.argument != "draft_model" or value == cls.method

    @classmethod
    def asked_by(cls) -> str:
        return f"draft_model={cls.method!r}" if cls.argument == "draft_model" else cls.argument

    def adaptive_schedule(self, max_tokens: int, is_default: bool) -> Schedule:
        return BestNodes(max_tokens)

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        """Its ways to guess how a text of the target `model` goes on."""
        raise NotImplementedError

    def drafter(self, call: BuildContext) -> TreeDrafter:
        proposers = self.proposers(call.model)
        key = tuple(type(proposer) for proposer in proposers)
        return TreeDrafter(proposers, learned=kept_with(call.model).setdefault(key, {}))


@dataclass(frozen=True, eq=False)
class TextSource(GuessingSource):
    """Copies from the row's own text, and from a corpus or answers that are kept."""

    corpus: Corpus | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    suffix_decoding_max_cached_requests: int | None = None

    def __post_init__(self):
        max_requests = self.suffix_decoding_max_cached_requests
        if self.corpus is not None and max_requests is not None:
            reason = f"`suffix_decoding_max_cached_requests={max_requests}` has no effect beside `corpus`"
            way_out = f"give `corpus=hf_speculative.SuffixStore(max_documents={max_requests})`, which keeps answers, too"
            raise ValueError(f"{reason}: leave it out, or {way_out}.")

    def check(self, model: PreTrainedModel) -> None:
        if (store := self._store(model)) is not None:
            store.check_vocabulary(num_logits(model))

    def copies(self, model: PreTrainedModel, **settings) -> list[Proposer]:
        """Of the row's own text and of others, `settings` as for `SuffixProposer`."""
        store = self._store(model)
        learns = self.corpus is None or isinstance(self.corpus, SuffixStore)
        return [PromptSuffix(**settings), *([] if store is None else [CorpusSuffix(store, learns, **settings)])]

    def _store(self, model: PreTrainedModel) -> SuffixStore | None:
        """The one given; else one that is kept with the model: its answers, or a corpus, which is read once."""
        if (max_requests := self.suffix_decoding_max_cached_requests) is not None:
            return kept_with(model).setdefault((SuffixStore, max_requests), SuffixStore(max_documents=max_requests))
        if self.corpus is None or isinstance(self.corpus, SuffixStore):
            return self.corpus
        # A text that comes alone is the name of a file.
        parts = (Path(self.corpus),) if isinstance(self.corpus, (str, os.PathLike)) else tuple(self.corpus)
        for part in parts:
            if not isinstance(part, (str, os.PathLike)):
                kind = type(part).__name__
                raise TypeError(f"`corpus` holds an object of type {kind}: give texts, and paths as pathlib.Path.")
        corpora = loaded_for(model)
        if parts not in corpora:
            corpora[parts] = self._read(parts, model)
        return corpora[parts]

    def _read(self, parts: tuple[str | os.PathLike, ...], model: PreTrainedModel) -> SuffixStore:
        texts = [part for part in parts if isinstance(part, str)]
        files = [Path(part) for part in parts if not isinstance(part, str)]
        if len(parts) == 1 and files and files[0].suffix == ".safetensors":
            return SuffixStore.load(files[0], self.tokenizer)
        tokenizer = self.tokenizer if self.tokenizer is not None else tokenizer_of(model)
        store = SuffixStore(tokenizer, max_tokens=UNBOUNDED)
        store.add_files(*files)
        store.add_texts(texts)
        return store


class RecyclingSource(GuessingSource):
    method = "recycling"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [recycling_of(model)]


def recycling_of(model: PreTrainedModel) -> Recycling:
    """What is known of a model's successors, kept with it from call to call."""
    return kept_with(model).setdefault(Recycling, Recycling())


class SuffixSource(TextSource):
    method = "suffix"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return self.copies(model, max_factor=MAX_FACTOR, min_share=MIN_SHARE)


class AutoSource(TextSource):
    """The model's own MTP layers where its checkpoint has some, else recycling and copies together."""

    method = "auto"
    tried = (method,)

    def for_model(self, model: PreTrainedModel) -> DraftSource:
        if self.corpus is not None or self.suffix_decoding_max_cached_requests is not None:
            return self
        mtp = MtpSource(True)
        try:
            mtp.check(model)
        except ValueError:  # most models have none
            return self
        return mtp

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [recycling_of(model), *self.copies(model)]


@dataclass(frozen=True, eq=False)
class NgramSource(GuessingSource):
    max_matching_ngram_size: int = 3

    method = "ngram"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [PromptSuffix(max_depth=self.max_matching_ngram_size + 1)]  # the match and the token after it


class PromptLookupSource(NgramSource):
    argument = "prompt_lookup_num_tokens"
    tried = (10,)

    @property
    def num_draft_tokens(self) -> int:  # type: ignore[override]
        return self.given


class GrammarSource(GuessingSource):
    method = "grammar"

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return []  # a `TreeDrafter` has `ForcedTokens` beside all others


class SeveralSource(GuessingSource):
    """All that the sources `given` guess, each guess by its chance."""

    @property
    def method(self) -> str:  # type: ignore[override]
        return AND.join(source.method for source in self.given)

    @property
    def name(self) -> str:
        return f"draft_model={self.method!r}"

    def options(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for source in self.given for name in source.options()))

    check = to_each("given", "check")

    def proposers(self, model: PreTrainedModel) -> list[Proposer]:
        return [proposer for source in self.given for proposer in source.proposers(model)]
