"""The tokenizers of models given by name."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..heads import layout_of


def tokenizer_of_draft(name: str, tokenizer: PreTrainedTokenizerBase, **loading) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a draft given by name, if it has one and its vocabulary is not that of `tokenizer`, the target's.

    A draft head has none of its own: what it proposes are the target's ids, whatever tokenizer lies beside it.
    """
    if layout_of(name, **loading) is not None:
        return None
    try:
        found = AutoTokenizer.from_pretrained(name, **{"trust_remote_code": False} | loading)
    except (OSError, ValueError):  # weights without a tokenizer share the target's
        return None
    return found if found.get_vocab() != tokenizer.get_vocab() else None


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer from where a model came from."""
    try:
        return AutoTokenizer.from_pretrained(model.config.name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer where the model came from, {model.config.name_or_path!r}: pass `tokenizer=`."
        ) from error
