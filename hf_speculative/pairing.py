"""A target and a draft model, of one vocabulary or of two: which drafter fits, and why none does."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .configuration import Options
from .drafting import DraftModel, StringMatch, TokenIntersection
from .models import with_cache
from .translation import LOOKBEHIND, Translation
from .types import Drafter
from .vocabulary import MAPPINGS, VocabularyMatch, compare_vocabularies


def drafter_for(options: Options, model: PreTrainedModel, do_sample: bool) -> Drafter:
    """The drafter that drives `options.draft_model` for the target `model`.

    Raises:
        ValueError: the two vocabularies do not go together.
    """
    match = check_vocabularies(options, model, do_sample)
    assert options.draft_model is not None
    draft = with_cache(options.draft_model, is_draft=True)
    max_positions = getattr(_text_config(options.draft_model), "max_position_embeddings", None)
    if match is None or match.strategy == "same":
        return DraftModel(draft, max_positions)
    translation = Translation(
        options.config.tokenizer,
        options.config.draft_tokenizer,
        _text_config(model).vocab_size,
        _text_config(options.draft_model).vocab_size,
        target_lookbehind=options.lookbehinds.get("target_lookbehind", LOOKBEHIND),
        draft_lookbehind=options.lookbehinds.get("assistant_lookbehind", LOOKBEHIND),
    )
    return (StringMatch if match.strategy == "strings" else TokenIntersection)(draft, translation, max_positions)


def check_tokenizers(options: Options) -> None:
    """Tokenizers and what is set for them, as far as they can be judged without the models."""
    config = options.config
    if config.draft_tokenizer is not None and config.tokenizer is None:
        raise ValueError(
            "`draft_tokenizer` (or `assistant_tokenizer`) has no effect without `tokenizer`, to compare it with: give both or "
            "neither."
        )
    useless = [*(["draft_tokenizer"] if config.draft_tokenizer is not None else []), *options.lookbehinds_in_call]
    if options.draft_model is None and useless:
        names = ", ".join(f"`{name}`" for name in useless)
        raise ValueError(f"{names} has no effect without `draft_model`: leave it out.")
    for name, value in (("tokenizer", config.tokenizer), ("draft_tokenizer", config.draft_tokenizer)):
        if config.draft_tokenizer is not None and not isinstance(value, PreTrainedTokenizerBase):
            raise TypeError(f"`{name}` is a {type(value).__name__}: pass a transformers tokenizer.")
    if config.vocabulary_mapping is not None:
        if config.vocabulary_mapping not in MAPPINGS:
            raise ValueError(f"`vocabulary_mapping={config.vocabulary_mapping!r}` is not one of {', '.join(MAPPINGS)}.")
        if config.draft_tokenizer is None:
            raise ValueError(
                f"`vocabulary_mapping={config.vocabulary_mapping!r}` has no effect without `tokenizer` and `draft_tokenizer`: "
                "give both, or leave it out."
            )


def check_vocabularies(options: Options, model: PreTrainedModel, do_sample: bool) -> VocabularyMatch | None:
    """How the draft can propose for `model`; `None` where no tokenizers were given, that is for one vocabulary.

    Raises:
        ValueError: it cannot, or an option for vocabularies that differ has no effect.
    """
    config, draft = options.config, options.draft_model
    match = None
    if draft is not None and config.tokenizer is not None and config.draft_tokenizer is not None:
        match = compare_vocabularies(
            config.tokenizer,
            config.draft_tokenizer,
            _text_config(model).vocab_size,
            _text_config(draft).vocab_size,
            do_sample=do_sample,
            mapping=config.vocabulary_mapping,
        )
        if match.strategy is None:
            raise ValueError(
                f"`draft_model` cannot draft through `draft_tokenizer`: {match.reason}. Use another draft."
            )
    strategy = match.strategy if match is not None else "same"
    if options.lookbehinds_in_call and strategy != "strings":
        names = " and ".join(f"`{name}`" for name in options.lookbehinds_in_call)
        raise ValueError(
            f"{names} has no effect on a draft that proposes tokens: leave it out, or set "
            "`SpeculativeConfig(vocabulary_mapping='strings')` with `tokenizer` and `draft_tokenizer`."
        )
    return match


def _text_config(model: PreTrainedModel):
    return model.config.get_text_config(decoder=True)
