"""Draft with a small model, one token at a time.

Each proposal is drawn from the draft's own processed distribution, which the rule gets as well.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import models
from ..forwarding import Forwarded
from ..interfaces import CachedModel, Drafter, Sampler, Schedule
from ..models.execution import multimodal_model, ragged_model
from ..tokenizers.alignment import LOOKBEHIND, Translation
from ..tokenizers.loading import tokenizer_beside
from ..tokenizers.vocabulary import VocabularyMatch, compare_vocabularies, is_padding
from ..types import Batch, Draft, uploaded
from .autoregressive import AutoregressiveDrafter, as_proposed
from .model_drafter import ModelDrafter, StringMatch, TokenIntersection
from .source import BuildContext, GivenModelSource


class DraftModel(ModelDrafter, AutoregressiveDrafter):
    """Drafts with a causal language model and a cache of its own."""

    skips_steps = True
    scores_levels = Forwarded("model", "takes_levels")  # type: ignore[assignment]
    greedy_chain = Forwarded("model", "greedy_chain")  # type: ignore[assignment]
    rollback = Forwarded("model", "rollback")  # type: ignore[assignment]

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        num_tokens = self.limit(batch, num_tokens)
        settings = sampler.settings
        if not max(num_tokens) or settings is None or schedule.may_stop or not self.model.drafts_at_once(batch):
            return super().propose(batch, num_tokens, schedule, sampler)

        def draw(logits: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
            return sampler.propose(sampler.draft_scores(batch, logits, ahead), ahead)

        tokens, distributions = self.model.draft(batch, max(num_tokens), draw, settings)
        return as_proposed(tokens, distributions, uploaded(num_tokens, tokens.device), sampler)

    limit = ModelDrafter.within_context

    def step(self, batch: Batch, ahead: int) -> Tensor:
        return self.model.logits(batch, ahead=ahead, num_last=1)[:, 0]

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        return self.model.logits(batch, ahead=num_nodes, num_last=width)


#: positions behind a window that are left to draft tokens
ROOM = 64
LOOKBEHINDS = ("target_lookbehind", "assistant_lookbehind")


@dataclass(frozen=True, eq=False)
class DraftModelSource(GivenModelSource):
    """A causal language model, or an encoder-decoder model for another one."""

    tokenizer: PreTrainedTokenizerBase | None = None
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    vocabulary_mapping: str | None = None
    target_lookbehind: int = LOOKBEHIND
    assistant_lookbehind: int = LOOKBEHIND
    draft_window: int | None = None
    in_call: Collection[str] = ()

    method = "draft_model"
    scores_levels = True

    @classmethod
    def takes(cls, value) -> bool:
        return isinstance(value, nn.Module)

    def __post_init__(self):
        super().__post_init__()
        if self.draft_tokenizer is not None and self.tokenizer is None:
            raise ValueError("`draft_tokenizer` (`assistant_tokenizer` in a call) needs `tokenizer`: give both.")

    @property
    def cost_key(self) -> Hashable:
        return super().cost_key, self.vocabulary_mapping, self.draft_window

    def for_model(self, model: PreTrainedModel) -> DraftModelSource:
        """With the tokenizers that lie beside both models, where none were given and the vocabularies differ in size."""
        if self.draft_tokenizer is not None:
            return self
        if not is_padding(*self._vocab_sizes(model)):
            own = self.tokenizer if self.tokenizer is not None else tokenizer_beside(model)
            of_draft = tokenizer_beside(self.draft_model)
            if own is not None and of_draft is not None:
                return replace(self, tokenizer=own, draft_tokenizer=of_draft)
        if self.vocabulary_mapping is not None:
            raise ValueError(f"`vocabulary_mapping={self.vocabulary_mapping!r}` needs `draft_tokenizer`: give both.")
        return self

    @property
    def window(self) -> int | None:  # type: ignore[override]
        """The one given, or the widest that the draft takes, if it has a limit that leaves room for one."""
        limit = models.max_positions_of(self.draft_model)
        if self.draft_window is not None or limit is None or limit < 2 * ROOM:
            return self.draft_window
        return limit - ROOM

    def check(self, model: PreTrainedModel) -> None:
        models.checks.check_model(self.draft_model, "draft_model")
        limit, window = models.max_positions_of(self.draft_model), self.draft_window
        if limit is not None and window is not None and window > limit - ROOM:
            way_out = f"give at most {limit - ROOM}" if limit >= 2 * ROOM else "leave it out"
            raise ValueError(
                f"`draft_window={window}` is more than `draft_model` takes, {limit} tokens with {ROOM} for drafts: {way_out}."
            )

    def check_ids(self, model: PreTrainedModel) -> None:
        if self.draft_tokenizer is not None:
            return
        draft, (size, draft_size) = self.draft_model, self._vocab_sizes(model)
        name = type(draft).__name__
        way_out = "give `tokenizer=` and `assistant_tokenizer=`, or use a draft with the target's tokenizer"
        if not is_padding(size, draft_size):
            sizes = f"a vocabulary of {draft_size} entries and the target one of {size}, more than padding explains"
            raise ValueError(f"`draft_model`: {name} has {sizes}, so that its ids mean other tokens: {way_out}.")
        if draft.config.is_encoder_decoder and not model.config.is_encoder_decoder:
            reason = "is an encoder-decoder model and the target is not, and no such two are known to have one vocabulary"
            raise ValueError(f"`draft_model`: {name} {reason}: {way_out}.")

    def vocabulary(self, model: PreTrainedModel, do_sample: bool) -> VocabularyMatch | None:
        if self.tokenizer is None or self.draft_tokenizer is None:
            return None
        sizes = self._vocab_sizes(model)
        return compare_vocabularies(self.tokenizer, self.draft_tokenizer, *sizes, do_sample, self.vocabulary_mapping)

    def drafter(self, call: BuildContext) -> Drafter:
        draft = self.draft_model
        strategy = self._strategy(call)
        has_own_text = strategy != "same"
        cached = None if has_own_text else self._with_media(call)
        is_ragged = models.choose(draft, is_draft=True).name == "ragged"
        if cached is None and is_ragged and (has_own_text or call.inputs.prompt.is_left_padded):
            # It may be shown tokens that it has no embedding for, where the target's vocabulary is padded further.
            max_length = None if has_own_text else call.inputs.generation_config.max_length
            cached = self._in_window(ragged_model(draft, call.execution, clamp_ids=True), max_length)
        elif "draft_window" in self.in_call:  # one that was attached is for other calls
            reason = f"in which {type(draft).__name__} takes the universal path, or reads more than ids"
            raise ValueError(f"`draft_window={self.draft_window}` has no effect in this call, {reason}: leave it out.")
        elif cached is None:
            cached = self._on_universal_path(call, has_own_text)
        max_positions = models.max_positions_of(draft)
        if not has_own_text:
            drafter = DraftModel(cached, max_positions)
            return self.in_trees(drafter) if cached.takes_levels and models.fits_trees(draft) else drafter
        sizes, lookbehinds = self._vocab_sizes(call.model), (self.target_lookbehind, self.assistant_lookbehind)
        translation = Translation(self.tokenizer, self.draft_tokenizer, *sizes, *lookbehinds)
        return (StringMatch if strategy == "strings" else TokenIntersection)(cached, translation, max_positions)

    def _in_window(self, cached: models.RaggedModel, max_length: int | None) -> CachedModel:
        """The draft with a window, where a text of `max_length`, `None` if not known in its own tokens, may be longer."""
        most = self.draft_window or models.max_positions_of(self.draft_model) or inf
        fits = max_length is not None and max_length <= most
        return cached if fits or self.window is None else models.WindowedModel(cached, self.window)

    def _strategy(self, call: BuildContext) -> str:
        """How the draft proposes, see `VocabularyMatch`.

        Raises:
            ValueError: it cannot, or an option for vocabularies that differ has no effect.
        """
        match = self.vocabulary(call.model, bool(call.inputs.generation_config.do_sample))
        if match is not None and match.strategy is None:
            raise ValueError(f"`draft_model` cannot draft by `draft_tokenizer`: {match.reason}. Use another draft.")
        strategy = (match and match.strategy) or "same"
        useless = [f"`{name}`" for name in LOOKBEHINDS if name in self.in_call]
        if useless and strategy != "strings":
            way_out = "set `SpeculativeConfig(vocabulary_mapping='strings')` with `tokenizer` and `draft_tokenizer`"
            reason = f"{' and '.join(useless)} has no effect on a draft that proposes tokens"
            raise ValueError(f"{reason}: leave it out, or {way_out}.")
        return strategy

    def _with_media(self, call: BuildContext) -> CachedModel | None:
        """The draft with the images or recordings of the prompt; `None` where there are none, or it does not take them."""
        draft, inputs = self.draft_model, call.inputs
        if not inputs.has_media:
            return None
        prepared = models.inputs_for_draft(draft, call.model, inputs, call.generate_kwargs, call.inputs_tensor)
        has_own_start = prepared.input_ids.shape != inputs.input_ids.shape  # a decoder's, put before the target's
        if has_own_start or not models.choose_for(draft, prepared, is_draft=True).has_media:
            return None
        return multimodal_model(draft, prepared, True, call.execution)

    def _on_universal_path(self, call: BuildContext, has_own_text: bool) -> CachedModel:
        draft = self.draft_model
        if has_own_text and draft.config.is_encoder_decoder:
            raise ValueError(f"`draft_model`: {type(draft).__name__} has an encoder: use one with the target's tokenizer.")
        if call.inputs.input_ids.shape[1] == 0:
            reason = "needs the prompt's ids, and `inputs_embeds` came alone: pass `input_ids=` as well, or use another draft"
            raise ValueError(f"`draft_model`: {type(draft).__name__} {reason}.")
        prepared = models.inputs_for_draft(draft, call.model, call.inputs, call.generate_kwargs, call.inputs_tensor)
        models.checks.check_universal(draft, prepared, "draft_model")
        return models.TextModel(draft) if has_own_text else models.UniversalModel(draft, prepared, clamp_ids=True)

    def _vocab_sizes(self, model: PreTrainedModel) -> tuple[int, int]:
        """Of the target `model` and of the draft."""
        target, draft = (one.config.get_text_config(decoder=True) for one in (model, self.draft_model))
        return target.vocab_size, draft.vocab_size
