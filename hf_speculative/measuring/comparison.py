"""Compare plain and speculative decoding of prompts, batch by batch, and record an evaluation."""

import functools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import prompt_ids, settings_of_rows
from ..tokenizers.chat import as_chat, chat_keywords, speaks_chat
from ..tokenizers.pieces import Pieces
from .decoder import Decoder
from .drafts import NamedDraft
from .journal import Row
from .plan import journal_of
from .results import Evaluation
from .rows import Prompt
from .runner import Runner
from .settings import Setting


@dataclass(frozen=True)
class Piece:
    """A token's text, the seconds until it came, and whether it was a draft token."""

    seconds: float
    text: str
    is_from_draft: bool


class Comparison:
    """Decode with a pair both plainly and speculatively.

    Args:
        draft, draft_tokenizer: the draft that a setting calls `draft`.
        setting: the speculative setting.
        num_prompts: the number of prompts to come.
        repeats: how often each is decoded both ways, in turn.
        seed: of the first call.
        raw: continue texts as they are. Default: they are a user's messages, where the tokenizer has a chat template, and
            special tokens are not shown.
        **kwargs: options of both `generate` calls.

    Raises:
        ValueError, TypeError: the setting cannot work, or the target is an encoder-decoder model.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: Any,
        tokenizer: PreTrainedTokenizerBase,
        draft_tokenizer: PreTrainedTokenizerBase | None,
        setting: Setting,
        num_prompts: int = 1,
        batch_size: int = 1,
        repeats: int = 1,
        seed: int = 0,
        raw: bool = False,
        **kwargs,
    ):
        if target.config.is_encoder_decoder:
            raise ValueError(
                f"the target is of type {type(target).__name__}: this comparison takes decoder-only models."
            )
        drafts = {"draft": NamedDraft("draft", "", draft, draft_tokenizer)} if draft is not None else {}
        self.tokenizer, self.setting, self.settings = tokenizer, setting, [setting.baseline, setting]
        self.raw, self.is_chat = raw, speaks_chat(tokenizer) and not raw
        self.decode = functools.partial(tokenizer.decode, skip_special_tokens=self.is_chat)
        options = settings_of_rows(target, tokenizer, chat_keywords(target, tokenizer, raw) | kwargs)
        self.decoder = Decoder(target, tokenizer, drafts, options, seed, forgets=True)
        self.decoder.check(setting)
        self.journal = journal_of(self.decoder, self.settings, batch_size, repeats, num_prompts)
        self.runner = Runner(self.decoder, self.settings, self.journal, repeats)
        self.num_batches = self.num_prompts = 0

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation so far."""
        return Evaluation(self.journal)

    def stream(self, prompt: Prompt) -> Iterator[tuple[str, bool]]:
        """Stream speculative decoding of the next prompt: pieces of text, each with whether it was a draft token."""
        (ids,) = self._ids([prompt])
        pieces = Pieces(self.decode, before=ids)
        with closing(self.decoder.rounds(self.setting, self.num_batches * self.runner.repeats, [ids])) as rounds:
            for round, _ in rounds:
                for index, token in enumerate(round.tokens[0]):
                    is_last = round.done[0] and index == len(round.tokens[0]) - 1
                    yield pieces.add(token, is_last), index < round.num_from_draft[0]

    def timelines(self, prompt: Prompt) -> tuple[list[Piece], list[Piece]]:
        """Decode one prompt plainly and speculatively, with the time of each token."""
        (ids,) = self._ids([prompt])
        pieces, arrivals = Pieces(self.decode, before=ids), self.decoder.plain_arrivals(self.setting, ids)
        plain = [Piece(seconds, pieces.add(token, False), False) for token, seconds in arrivals]
        start = time.perf_counter()
        return plain, [Piece(time.perf_counter() - start, *piece) for piece in self.stream(prompt)]

    def warm_up(self, prompts: list[Prompt]) -> None:
        """Decode both ways, untimed."""
        for setting in self.settings:
            self.runner.warm_up(setting, [self._ids(prompts)])

    def compare(self, prompts: list[Prompt]) -> list[dict[str, Any]]:
        """Decode the next batch both ways, as often as it is repeated.

        Returns:
            For each prompt the pieces of its text, each with whether it was a draft token, and its JSON fields.

        Raises:
            ValueError: the batch could not be decoded. The next one can be tried.
        """
        batch, ids = self.num_batches, self._ids(prompts)
        indices = [self.num_prompts + row for row in range(len(prompts))]
        self.num_batches, self.num_prompts = batch + 1, self.num_prompts + len(prompts)
        self.runner.run(batch, indices, ids)
        if (bad := self.journal.bad_rows.get(indices[0])) is not None:
            raise ValueError(bad.message)
        first = batch * self.runner.repeats
        own, plain = (self.journal.calls[s.name, first].rows for s in (self.setting, self.setting.baseline))
        return list(map(self._shown, ids, own, plain))

    def _shown(self, prompt: list[int], own: Row, plain: Row) -> dict[str, Any]:
        pieces, new, counts = Pieces(self.decode, before=prompt), own.new_ids, own.statistics
        added = [pieces.add(token, is_last=end == len(new)) for end, token in enumerate(new, start=1)]
        from_draft = [chance is not None for chance in own.acceptance_prob]
        text, is_identical = self.decode(new), new == plain.new_ids
        as_json = {"text": text, "identical": is_identical, "statistics": counts and counts.to_dict()}
        return {"pieces": list(zip(added, from_draft, strict=True)), "json": as_json}

    def _ids(self, prompts: list[Prompt]) -> list[list[int]]:
        said = [as_chat(prompt, self.tokenizer, self.raw) for prompt in prompts]
        return [prompt_ids(prompt, i, self.decoder.target, self.tokenizer) for i, prompt in enumerate(said)]
