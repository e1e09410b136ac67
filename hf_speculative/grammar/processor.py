"""The logits processor of a grammar, a function of the prefix, and how the keyword `grammar` becomes one."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from ..models import num_logits
from ..tokenizers.chat import ids_of
from ..tokenizers.loading import tokenizer_beside

if TYPE_CHECKING:
    from .compiled import Grammar

BITS = 32


class Mask:
    """The tokens that may come next.

    Attributes:
        ids: int64, those that may, or those that may not, whichever are fewer.
        allows_ids: which of the two.
    """

    def __init__(self, bits: np.ndarray, vocab_size: int):
        self.bits = bits
        is_allowed = np.unpackbits(bits.view(np.uint8), count=vocab_size, bitorder="little").view(bool)
        self.allows_ids = 2 * np.count_nonzero(is_allowed) < vocab_size
        self.ids = torch.from_numpy(np.flatnonzero(is_allowed == self.allows_ids))

    def allows(self, token: int) -> bool:
        return bool(int(self.bits[token // BITS]) >> token % BITS & 1)

    def apply(self, scores: Tensor) -> None:
        """Set `scores (vocab,)` of tokens that may not come to minus infinity, in place."""
        ids = self.ids.to(scores.device)
        if not self.allows_ids:
            scores.index_fill_(0, ids, -torch.inf)
            return
        allowed = scores[ids]
        scores.fill_(-torch.inf).index_copy_(0, ids, allowed)


class TooHard(ValueError):
    """The engine's limits do not allow to continue a text under a grammar."""


class Walk:
    """Where a row is in its grammar. Any prefix may be asked about; near ones are a step or a few back and forth.

    Args:
        start: tokens of the prompt, which the grammar is not about.
    """

    def __init__(self, grammar: "Grammar", start: int = 0):
        self.grammar, self.start = grammar, start
        self.matcher = grammar.matcher()
        self.tokens: list[int] = []
        self.text: list[int] | None = None
        self.masks: dict[tuple[int, ...], Mask] = {}

    def _check(self) -> None:
        """Begin anew where the engine has given up, which it does for good."""
        if self.matcher.is_error():
            error, self.matcher, self.tokens = self.matcher.get_error(), self.grammar.matcher(), []
            raise TooHard(f"`grammar` takes more than the engine's limits allow: {error.splitlines()[0]}")

    def _go_to(self, tokens: list[int]) -> bool:
        """Whether the grammar allows these tokens; if not, it stands after the last one that it does.

        Raises:
            TooHard: it cannot tell.
        """
        same = min(len(self.tokens), len(tokens))
        while self.tokens[:same] != tokens[:same]:
            same -= 1
        if same < len(self.tokens):
            self.matcher.rollback(len(self.tokens) - same)
            del self.tokens[same:]
        if new := tokens[same:]:
            self.tokens += new[: self.matcher.try_consume_tokens(new)]
        self._check()
        return len(self.tokens) == len(tokens)

    def mask(self, text: Sequence[int], path: tuple[int, ...] = ()) -> Mask:
        """What may follow the row's `text`, its prompt included, and then `path`, draft tokens.

        Raises:
            TooHard: the engine has given up on the text. After draft tokens, all is allowed then: it is asked again later.
        """
        from llguidance.numpy import fill_next_token_bitmask

        if text != self.text:
            self.text, self.masks = [*text], {}
        if path not in self.masks:
            bits = np.full((1, -(-self.grammar.vocab_size // BITS)), -1, dtype=np.int32)
            try:
                # Plain decoding gets beyond an end, and nowhere else, where the grammar does not go.
                if self._go_to([*text[self.start :], *path]) or self.matcher.is_stopped():
                    fill_next_token_bitmask(self.matcher, bits, 0)
                    self._check()
            except TooHard:
                if not path:
                    raise
                bits.fill(-1)
            self.masks[path] = Mask(bits[0], self.grammar.vocab_size)
        return self.masks[path]

    def allows(self, text: Sequence[int], path: tuple[int, ...], token: int) -> bool:
        return self.mask(text, path).allows(token)

    def forced(self, text: Sequence[int], path: tuple[int, ...]) -> list[int]:
        """The tokens that follow whatever the model says, as its tokenizer would write them."""
        try:
            if not self._go_to([*text[self.start :], *path]):
                return []
            forced = [self.grammar.eos[0]] if self.matcher.is_stopped() else self.matcher.compute_ff_tokens()
            self._check()
        except TooHard:  # told where the target gets there
            return []
        return forced


class GrammarProcessor(LogitsProcessor):
    """Leaves each row the tokens that its grammar allows next. Made for one call of `generate`.

    Args:
        grammars: one for all rows, or one a prompt.
    """

    def __init__(self, grammars: "Sequence[Grammar]"):
        self.grammars = tuple(grammars)
        self.walks: dict[int, Walk] = {}
        self.width: int | None = None

    def begin(self, starts: Sequence[int]) -> None:
        """The call's rows, by the tokens of their prompts; copies of one prompt stand together."""
        copies, rest = divmod(len(starts), len(self.grammars))
        if rest:
            numbers = f"{len(self.grammars)} grammars for {len(starts)} rows"
            raise ValueError(f"`grammar` lists {numbers}: give one for all, or one a prompt.")
        self.walks = {row: Walk(self.grammars[row // copies], start) for row, start in enumerate(starts)}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask `scores (batch, vocab)` after `input_ids (batch, width)`, the first of which are the prompts."""
        if self.width is None:
            self.width = input_ids.shape[1]
            self.begin([0] * len(input_ids))
        scores = scores.clone()
        for row, text in enumerate(input_ids[:, self.width :].tolist()):
            self.walks[row].mask(text).apply(scores[row])
        return scores

    def clone(self, memo: Any = None) -> "GrammarProcessor":
        """One that has read nothing."""
        return GrammarProcessor(self.grammars)

    __deepcopy__ = clone


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
    found = {key: compiled(read(one), tokenizer, num_logits(model), eos) for key, one in different.items()}
    processor = GrammarProcessor([found[id(one)] for one in values])
    return kwargs | {"logits_processor": [*(kwargs.get("logits_processor") or []), processor]}


def _end_tokens(model: PreTrainedModel, kwargs: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    configs = (kwargs.get("generation_config"), model.generation_config)
    said = (kwargs.get("eos_token_id"), *(getattr(config, "eos_token_id", None) for config in configs))
    eos = next((one for one in (*said, tokenizer.eos_token_id) if one is not None), None)
    if eos is None:
        raise ValueError("`grammar` ends with an end token, and there is none: give `eos_token_id=`.")
    return ids_of(eos)


def read(value: Any) -> Any:
    """What a file holds, if it is one; of a list, of each.

    Raises:
        ValueError: it cannot be read.
    """
    if isinstance(value, (list, tuple)):
        return [*map(read, value)]
    if not isinstance(value, os.PathLike) and not (isinstance(value, str) and value.endswith(SUFFIXES)):
        return value
    try:
        text = Path(value).read_text(encoding="utf-8")
        return json.loads(text) if Path(value).suffix == ".json" else text
    except (OSError, ValueError) as error:
        raise ValueError(f"`grammar={str(value)!r}` cannot be read: {error}") from error
