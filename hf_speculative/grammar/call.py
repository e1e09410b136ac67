"""Turn the keyword `grammar` of `generate` into a logits processor."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models import num_logits
from ..tokenizers.chat import ids_of
from ..tokenizers.loading import tokenizer_beside
from .processor import GrammarProcessor

#: names of files that hold a grammar
SUFFIXES = (".json", ".lark", ".gbnf")


def with_grammar(
    model: PreTrainedModel, kwargs: dict[str, Any], value: Any, tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, Any]:
    """Keywords of `generate` in which a `GrammarProcessor` stands for the grammar `value`; `None` is none.

    Args:
        tokenizer: the model's. Default: the one from where the model came from.

    Raises:
        ImportError: llguidance is missing.
        ValueError: as `compiled`; or they are not as many as the prompts.
    """
    if value is None:
        return kwargs
    try:
        from .compiled import compiled
    except ImportError as error:
        raise ImportError("`grammar` needs llguidance: pip install 'hf_speculative[grammar]'.") from error
    tokenizer = tokenizer or tokenizer_beside(model)
    if tokenizer is None:
        raise ValueError("`grammar` needs the text: pass the model's `tokenizer=` as well.")
    ids = next((kwargs[name] for name in ("input_ids", "inputs") if isinstance(kwargs.get(name), Tensor)), None)
    values = value if isinstance(value, (list, tuple)) else [value]
    if values is value and ids is not None and len(ids) != len(value):
        raise ValueError(f"`grammar` lists {len(value)} grammars for {len(ids)} prompts: give one, or one each.")
    eos = _end_tokens(model, kwargs, tokenizer)
    different = {id(one): one for one in values}  # what is there for several prompts is compiled once
    found = {key: compiled(_read(one), tokenizer, num_logits(model), eos) for key, one in different.items()}
    processor = GrammarProcessor([found[id(one)] for one in values])
    return kwargs | {"logits_processor": [*(kwargs.get("logits_processor") or []), processor]}


def _end_tokens(model: PreTrainedModel, kwargs: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    configs = (kwargs.get("generation_config"), model.generation_config)
    said = (kwargs.get("eos_token_id"), *(getattr(config, "eos_token_id", None) for config in configs))
    eos = next((one for one in (*said, tokenizer.eos_token_id) if one is not None), None)
    if eos is None:
        raise ValueError("`grammar` ends with an end token, and there is none: give `eos_token_id=`.")
    return ids_of(eos)


def _read(value: Any) -> Any:
    """What a file holds, if it is one."""
    if not isinstance(value, os.PathLike) and not (isinstance(value, str) and value.endswith(SUFFIXES)):
        return value
    try:
        text = Path(value).read_text(encoding="utf-8")
        return json.loads(text) if Path(value).suffix == ".json" else text
    except (OSError, ValueError) as error:
        raise ValueError(f"`grammar={str(value)!r}` cannot be read: {error}") from error
