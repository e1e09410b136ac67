"""What OpenAI's API has and transformers does not: its penalties, and stop texts that are left out of the answer."""

from collections.abc import Sequence

import regex
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria


class Penalties(LogitsProcessor):
    """Lower the logits of tokens in the answer: by `frequency` for each occurrence, and by `presence` once.

    As in OpenAI's API, the prompt's tokens do not count.
    """

    def __init__(self, prompt_length: int, frequency: float, presence: float):
        self.prompt_length, self.frequency, self.presence = prompt_length, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        answer = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


class HeldBack:
    """Stream a text, but hold back what may begin one of `texts`, and everything from one on."""

    def __init__(self, texts: Sequence[str]):
        self.pattern = regex.compile("|".join(map(regex.escape, texts)) or "(?!)")  # without texts, it matches nothing
        self.held, self.is_over = "", False

    def add(self, piece: str) -> str:
        if self.is_over:
            return ""
        whole = self.held + piece
        found = self.pattern.search(whole, partial=True)  # a whole one first, else one that the text ends within
        at = found.start() if found else len(whole)
        self.held, self.is_over = whole[at:], found is not None and not found.partial
        return whole[:at]

    def rest(self) -> str:
        """The text that is held back at the end of the answer."""
        return "" if self.is_over else self.held


class StopTexts(StoppingCriteria):
    """End an answer as soon as it holds one of `texts`. Called after each token, in order.

    Args:
        tokenizer: the Rust tokenizer.
        before: tokens in front of the answer, on which its white space may depend.
        skips_specials: special tokens are no text.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], before: Sequence[int] = (), skips_specials: bool = True):
        self.tokenizer, self.text = tokenizer, HeldBack(texts)
        self.stream = DecodeStream([*before], skip_special_tokens=skips_specials)
        self.num_read: int | None = None

    def __call__(self, input_ids: Tensor, scores, **kwargs) -> Tensor:
        first = input_ids.shape[1] - 1 if self.num_read is None else self.num_read
        for token in input_ids[0, first:].tolist():
            self.text.add(self.stream.step(self.tokenizer, token) or "")
        self.num_read = input_ids.shape[1]
        return torch.full((len(input_ids),), self.text.is_over, device=input_ids.device)
