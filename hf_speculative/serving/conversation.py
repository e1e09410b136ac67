"""A conversation with a model, with streamed replies."""

import time
from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import prompt_ids, settings_of_rows
from ..call.statistics import Statistics
from ..generation import generate_rounds
from ..tokenizers.chat import chat_keywords, speaks_chat
from ..tokenizers.pieces import Pieces


class Conversation:
    """A conversation of a user and a model.

    Args:
        model: the target.
        tokenizer: of the target; without a chat template, a reply continues the text so far.
        options: keywords of `generate`, those about drafts included.
        seed: of each reply; `None`: unseeded.
        system: the system message, where there is a chat template.

    Attributes:
        statistics: counts of the last reply, which took `seconds`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        options: dict[str, Any],
        seed: int | None = None,
        system: str = "",
    ):
        self.model, self.tokenizer, self.seed, self.system = model, tokenizer, seed, system
        self.options = settings_of_rows(model, tokenizer, chat_keywords(model, tokenizer) | options)
        self.clear()

    def clear(self) -> None:
        """Begin a new conversation."""
        self.messages: list[dict[str, str]] = []
        if self.system and speaks_chat(self.tokenizer):
            self.messages.append({"role": "system", "content": self.system})
        self.statistics, self.seconds = Statistics(), 0.0

    def reply(self, text: str) -> Generator[tuple[str, bool], None, None]:
        """Stream the reply to `text`: pieces, each with whether it was a draft token.

        Closing it early keeps the reply so far.
        """
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            with closing(self._pieces()) as pieces:
                for piece, is_from_draft in pieces:
                    said.append(piece)
                    yield piece, is_from_draft
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": "".join(said)})
            else:  # forget the question
                self.messages.pop()

    def _pieces(self) -> Generator[tuple[str, bool], None, None]:
        is_chat = speaks_chat(self.tokenizer)
        prompt = self.messages if is_chat else "".join(message["content"] for message in self.messages)
        ids = prompt_ids(prompt, 0, self.model, self.tokenizer)
        inputs = torch.tensor([ids], device=self.model.device)
        pieces = Pieces(partial(self.tokenizer.decode, skip_special_tokens=True), before=ids)
        if self.seed is not None:
            torch.manual_seed(self.seed)
        self.statistics, start = Statistics(), time.perf_counter()
        rounds = generate_rounds(self.model, input_ids=inputs, attention_mask=torch.ones_like(inputs), **self.options)
        with closing(rounds):
            for round, self.statistics in rounds:
                self.seconds = time.perf_counter() - start
                for index, token in enumerate(round.tokens[0]):
                    is_last = round.done[0] and index == len(round.tokens[0]) - 1
                    yield pieces.add(token, is_last), index < round.num_from_draft[0]

    @property
    def status(self) -> str:
        """Speed and acceptance of the last reply, in one line."""
        stats = self.statistics
        if not stats.num_new_tokens:
            return "nothing said yet"
        speed = f"{stats.num_new_tokens} tokens, {stats.num_new_tokens / self.seconds:.1f} a second"
        passes = f"{stats.num_target_forwards or stats.num_rounds} passes of the model"
        if not stats.num_draft_tokens:
            return f"{speed}, {passes}"
        return f"{speed}, {passes}; {stats.draft_acceptance_rate:.0%} of {stats.num_draft_tokens} draft tokens accepted"
