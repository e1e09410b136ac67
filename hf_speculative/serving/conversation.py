"""A conversation with a model: messages, settings and replies as they are generated."""

import json
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.option_types import WholeNumber
from ..call.prompts import prompt_ids
from ..call.statistics import Statistics
from ..generation import generate_rounds
from ..tokenizers.pieces import Pieces

#: what can be set while talking, with the type of its value
SETTINGS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "repetition_penalty": float,
    "max_new_tokens": int,
    "seed": int,
}


class Conversation:
    """Turns of a user and a model.

    Args:
        model: the target.
        tokenizer: of the target; without a chat template, a reply goes on with the text so far.
        drafting: keywords of `generate` that ask for drafts.
        settings: see `SETTINGS`; a temperature of 0 is greedy decoding.
        system: the system's message, where there is a chat template.

    Attributes:
        statistics: counts of the last reply, and `seconds` it took.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        drafting: dict[str, Any],
        settings: dict[str, Any],
        system: str = "",
    ):
        self.model, self.tokenizer, self.drafting, self.settings = model, tokenizer, drafting, dict(settings)
        self.system = system
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.messages: list[dict[str, str]] = []
        if self.system and self.tokenizer.chat_template:
            self.messages.append({"role": "system", "content": self.system})
        self.statistics, self.seconds = Statistics(), 0.0

    def set(self, name: str, value: str) -> None:
        """Change a setting.

        Raises:
            ValueError: there is no such setting, or its value is no number.
        """
        if name not in SETTINGS:
            raise ValueError(f"there is no setting {name!r}: set {', '.join(SETTINGS)}.")
        try:
            number = SETTINGS[name](value)
        except ValueError as error:
            raise ValueError(f"{name} {value}: give a number.") from error
        if name == "max_new_tokens":
            WholeNumber("gives no reply: give 1 or more.").checked(name, number)
        self.settings[name] = number

    def reply(self, text: str) -> Generator[tuple[str, bool], None, None]:
        """What the model says to `text`: pieces as they come, each with whether the draft had guessed it.

        Closing it early keeps what was said.
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
            else:  # as if it had not been asked
                self.messages.pop()

    def save(self, path: str) -> None:
        """Write the messages as JSON."""
        Path(path).write_text(json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n")

    def _pieces(self) -> Generator[tuple[str, bool], None, None]:
        has_template = bool(self.tokenizer.chat_template)
        prompt = self.messages if has_template else "".join(message["content"] for message in self.messages)
        ids = prompt_ids(prompt, 0, self.model, self.tokenizer)
        inputs = torch.tensor([ids], device=self.model.device)
        pieces, start = Pieces(self.tokenizer.decode, before=ids), time.perf_counter()
        if (seed := self.settings.get("seed")) is not None:
            torch.manual_seed(seed)
        self.statistics = Statistics()
        rounds = generate_rounds(
            self.model, input_ids=inputs, attention_mask=torch.ones_like(inputs), **self._sampling(), **self.drafting
        )
        ends = set(self.tokenizer.all_special_ids)
        try:
            with closing(rounds):
                for round, self.statistics in rounds:
                    for index, token in enumerate(round.tokens[0]):
                        is_last = round.done[0] and index == len(round.tokens[0]) - 1
                        piece = pieces.add(token, is_last) if token not in ends else ""
                        yield piece, index < round.num_from_draft[0]
        finally:
            self.seconds = time.perf_counter() - start

    def _sampling(self) -> dict[str, Any]:
        settings = {name: value for name, value in self.settings.items() if name != "seed"}
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.tokenizer.eos_token_id
        if pad is not None:
            settings["pad_token_id"] = pad
        if settings.get("temperature"):
            return settings | {"do_sample": True}
        for name in ("temperature", "top_p", "top_k"):
            settings.pop(name, None)
        return settings | {"do_sample": False}

    @property
    def status(self) -> str:
        """One line about the last reply."""
        stats = self.statistics
        if not stats.num_new_tokens:
            return "nothing said yet"
        speed = f"{stats.num_new_tokens} tokens, {stats.num_new_tokens / self.seconds:.1f} a second"
        passes = f"{stats.num_target_forwards or stats.num_rounds} passes of the model"
        if not stats.num_draft_tokens:
            return f"{speed}, {passes}"
        return f"{speed}, {passes}; {stats.draft_acceptance_rate:.0%} of {stats.num_draft_tokens} draft tokens accepted"
