"""Watch a text appear: its pieces as they are generated, plainly and speculatively."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import prompt_ids, settings_of_rows
from ..tokenizers.chat import as_chat, chat_keywords, speaks_chat
from ..tokenizers.pieces import Pieces
from .decoder import Decoder
from .rows import Prompt
from .settings import NamedDraft, Setting


@dataclass(frozen=True)
class Piece:
    """A token's text, the seconds until it came, and whether it was a draft token."""

    seconds: float
    text: str
    is_from_draft: bool


class Texts:
    """Stream the texts of one setting.

    Args:
        drafts: by name.
        setting: the speculative setting.
        seed: of the first text.
        raw: continue texts as they are. Default: they are a user's messages, where the tokenizer has a chat template, and
            special tokens are not shown.
        **kwargs: options of `generate`.

    Raises:
        ValueError, TypeError: the setting cannot work, or the target is an encoder-decoder model.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        drafts: Mapping[str, NamedDraft],
        tokenizer: PreTrainedTokenizerBase,
        setting: Setting,
        seed: int = 0,
        raw: bool = False,
        **kwargs,
    ):
        if target.config.is_encoder_decoder:
            raise ValueError(f"the target is of type {type(target).__name__}: give a decoder-only model.")
        self.tokenizer, self.setting, self.raw = tokenizer, setting, raw
        self.is_chat = speaks_chat(tokenizer) and not raw
        self.decode = partial(tokenizer.decode, skip_special_tokens=self.is_chat)
        options = settings_of_rows(target, tokenizer, chat_keywords(target, tokenizer, raw) | kwargs)
        self.decoder = Decoder(target, tokenizer, drafts, options, seed, forgets=True)
        self.decoder.check(setting)

    def stream(self, prompt: Prompt, number: int = 0) -> Iterator[tuple[str, bool]]:
        """Stream speculative decoding of a prompt: pieces of text, each with whether it was a draft token.

        Args:
            number: of the call, for its seed.
        """
        ids = self._ids(prompt)
        pieces = Pieces(self.decode, before=ids)
        with closing(self.decoder.rounds(self.setting, number, [ids])) as rounds:
            for round, _ in rounds:
                for index, token in enumerate(round.tokens[0]):
                    is_last = round.done[0] and index == len(round.tokens[0]) - 1
                    yield pieces.add(token, is_last), index < round.num_from_draft[0]

    def timelines(self, prompt: Prompt) -> tuple[list[Piece], list[Piece]]:
        """Decode one prompt plainly and speculatively, after a warm-up, with the time of each token."""
        ids = self._ids(prompt)
        for setting in (self.setting.baseline, self.setting):
            self.decoder.warm_up(setting, [ids])
        pieces, arrivals = Pieces(self.decode, before=ids), self.decoder.plain_arrivals(self.setting, ids)
        last = len(arrivals) - 1
        plain = [Piece(seconds, pieces.add(token, i == last), False) for i, (token, seconds) in enumerate(arrivals)]
        start = time.perf_counter()
        return plain, [Piece(time.perf_counter() - start, *piece) for piece in self.stream(prompt)]

    def _ids(self, prompt: Prompt) -> list[int]:
        said = as_chat(prompt, self.tokenizer, self.raw)
        return prompt_ids(said, 0, self.decoder.target, self.tokenizer)
