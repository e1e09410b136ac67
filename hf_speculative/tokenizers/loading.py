"""The tokenizers of models given by name."""

from weakref import WeakKeyDictionary

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


_beside: WeakKeyDictionary[PreTrainedModel, PreTrainedTokenizerBase | None] = WeakKeyDictionary()


def tokenizer_beside(model: PreTrainedModel | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer from where a model came from, if there is one, loaded once."""
    if model is None or not model.config.name_or_path:
        return None
    if model not in _beside:
        try:
            _beside[model] = tokenizer_of(model)
        except ValueError:
            _beside[model] = None
    return _beside[model]


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer from where a model came from."""
    try:
        return AutoTokenizer.from_pretrained(model.config.name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer beside the model, {model.config.name_or_path!r}: pass `tokenizer=`.") from error
