"""A target and a draft model, of one vocabulary or of two: which drafter fits, and why none does."""

from __future__ import annotations

import warnings

from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..drafting import DraftModel, StringMatch, TokenIntersection
from ..interfaces import CachedModel, Drafter
from ..models import Inputs, TextModel, UniversalModel, choose, inputs_for_draft, ragged_model, weights_of_a_pass
from ..tokenizers.alignment import LOOKBEHIND, Translation
from ..tokenizers.vocabulary import MAPPINGS, VocabularyMatch, compare_vocabularies, is_padding
from . import checks
from .configuration import Options
from .self_drafting import tied_drafter

#: a draft that computes this much more than its target is warned about; adapters on one of two equal models are less
NEARLY_AS_DEAR = 1.1


def draft_model_drafter(
    options: Options, model: PreTrainedModel, inputs: Inputs, inputs_tensor: Tensor | None
) -> Drafter:
    """The drafter that drives `options.draft_model` for the target `model`.

    Args:
        inputs: the call as the target's `generate` prepared it.
        inputs_tensor: the target's main input: the prompt's ids, or what its encoder read.

    Raises:
        ValueError: the two vocabularies do not go together.
    """
    match = check_vocabularies(options, model, bool(inputs.generation_config.do_sample))
    draft = options.draft_model
    assert draft is not None
    max_positions = max_positions_of(draft)
    has_own_text = match is not None and match.strategy != "same"
    is_ragged = choose(draft).name == "ragged" and (has_own_text or inputs.prompt.is_left_padded)
    cached: CachedModel
    if is_ragged:
        # It may be shown tokens that it has no embedding for, where the target's vocabulary is padded further.
        own = options.config
        cached = ragged_model(draft, True, compile=bool(own.compile), cuda_graphs=bool(own.cuda_graphs))
    else:
        if has_own_text and draft.config.is_encoder_decoder:
            raise ValueError(
                f"`draft_model`: {type(draft).__name__} reads the prompt through an encoder, in another vocabulary than the "
                "target's: use a draft with the target's tokenizer."
            )
        if inputs.input_ids.shape[1] == 0:
            raise ValueError(
                f"`draft_model`: {type(draft).__name__} needs the prompt's ids, and `inputs_embeds` came alone: pass "
                "`input_ids=` as well, or use another draft."
            )
        prepared = inputs_for_draft(draft, model, inputs, options.generate_kwargs, inputs_tensor)
        checks.check_universal(draft, prepared, "draft_model")
        cached = TextModel(draft) if has_own_text else UniversalModel(draft, prepared, clamp_ids=True)
    if match is None or match.strategy == "same":
        return DraftModel(cached, max_positions)
    translation = Translation(
        options.config.tokenizer,
        options.config.draft_tokenizer,
        _text_config(model).vocab_size,
        _text_config(draft).vocab_size,
        target_lookbehind=options.lookbehinds.get("target_lookbehind", LOOKBEHIND),
        draft_lookbehind=options.lookbehinds.get("assistant_lookbehind", LOOKBEHIND),
    )
    return (StringMatch if match.strategy == "strings" else TokenIntersection)(cached, translation, max_positions)


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


def check_pair(options: Options, model: PreTrainedModel) -> None:
    """What two models are to each other, as far as it can be judged without their tokenizers.

    Raises:
        ValueError: see `check_one_vocabulary`, where there are no tokenizers to translate with.
    """
    config, draft = options.config, options.draft_model
    if draft is None:
        return
    if config.tokenizer is None or config.draft_tokenizer is None:
        check_one_vocabulary(model, draft)
    size, draft_size = (weights_of_a_pass(one) for one in (model, draft))
    if draft_size > NEARLY_AS_DEAR * size:
        warnings.warn(
            f"`draft_model`: a token takes {draft_size:,} weights of {type(draft).__name__} and {size:,} of the target, so "
            "that drafts cost more than they can save: are the two mixed up?",
            stacklevel=2,
        )


def check_one_vocabulary(model: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Whether the ids of two models may mean the same tokens.

    Raises:
        ValueError: they clearly do not, so that no draft token would ever be accepted.
    """
    if tied_drafter(draft) is not None:  # it uses the target's own embeddings
        return
    size, draft_size = (_text_config(one).vocab_size for one in (model, draft))
    way_out = "give `tokenizer=` and `draft_tokenizer=`, or use a draft with the target's tokenizer"
    if not is_padding(size, draft_size):
        raise ValueError(
            f"`draft_model`: {type(draft).__name__} has a vocabulary of {draft_size} entries and the target one of {size}, "
            f"more than padding explains, so that its ids mean other tokens: {way_out}."
        )
    if draft.config.is_encoder_decoder and not model.config.is_encoder_decoder:
        raise ValueError(
            f"`draft_model`: {type(draft).__name__} is an encoder-decoder model and the target is not, and no such two are "
            f"known to have one vocabulary: {way_out}."
        )


def max_positions_of(model: PreTrainedModel) -> int | None:
    """The longest text the model can take, as far as its config says."""
    config = _text_config(model)
    names = ("max_position_embeddings", "max_target_positions", "n_positions")
    return next((size for name in names if (size := getattr(config, name, None)) is not None), None)


def _text_config(model: PreTrainedModel):
    return model.config.get_text_config(decoder=True)


def tokenizer_of_draft(name: str, tokenizer: PreTrainedTokenizerBase, **loading) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a draft given by name, if it has one and its vocabulary is not that of `tokenizer`, the target's."""
    try:
        found = AutoTokenizer.from_pretrained(name, **loading)
    except (OSError, ValueError):  # weights without a tokenizer share the target's
        return None
    return found if found.get_vocab() != tokenizer.get_vocab() else None


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer from where a model came from."""
    try:
        return AutoTokenizer.from_pretrained(model.config.name_or_path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer where the model came from, {model.config.name_or_path!r}: pass `tokenizer=`."
        ) from error
