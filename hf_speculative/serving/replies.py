"""Turn tokens into parts of a message on the engine's thread, and send them to the event loop."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from ..types import NoDistribution
from .engine import Closed, QueueFull
from .processors import HeldBack
from .protocol import Sampling
from .requests import Logprob, Run
from .tools import PlainText

logger = logging.getLogger(__name__)
#: errors whose messages are for the client
TOLD = (ValueError, TypeError, NoDistribution, QueueFull, Closed)
#: a part of a message: "content", "reasoning_content" or "tool_calls", and its value
Part = tuple[str, Any]


def words_of(error: BaseException) -> str:
    """The message of an error for a client, without details of this machine."""
    return str(error) if isinstance(error, TOLD) else f"the request failed ({type(error).__name__})"


class Event(NamedTuple):
    """An event of a reply: new parts, or its end."""

    reply: "Reply"
    parts: Sequence[Part] = ()
    logprobs: Sequence[Logprob] = ()
    is_end: bool = False


class Client:
    """The client of a request; once it is gone, what runs for it is cancelled."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.is_gone = False

    def add(self, run: Any) -> None:
        self.runs.append(run)
        if self.is_gone:
            run.cancel()

    def leave(self) -> None:
        self.is_gone = True
        for run in list(self.runs):
            run.cancel()


@dataclass(eq=False)
class Reply:
    """One answer of a request.

    Args:
        index: among the answers to the request.
        prompt: its ids.
        tokenizer: of the model.
        tell: takes events, from any thread.
        parser: finds thoughts and calls in the text.
        body: the request.
        ends: tokens that end it, which are not part of its text.
        max_new_tokens: the most tokens.
        prompt_logprobs: of the prompt's tokens, where the request asks for them.
        before: the end of a prompt that the text goes on from, on which white space may depend.
    """

    index: int
    prompt: list[int]
    tokenizer: PreTrainedTokenizerBase
    tell: Callable[[Event], None]
    parser: PlainText
    body: Sampling
    ends: set[int]
    max_new_tokens: int
    prompt_logprobs: list[Logprob] | None = None
    before: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.skips_specials = self.body.skip_special_tokens is not False and not self.parser.keeps_specials
        self.run: Run
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.tokens: list[int] = []
        self.told: list[str] = []
        self.num_told = 0
        self.has_called = self.is_cut = False
        self.held_back = HeldBack(self.body.stop or [])
        self.decoder = DecodeStream(self.before, skip_special_tokens=self.skips_specials)

    def start(self, submit: Callable[[], Run]) -> Run:
        """Submit it; tokens that arrive before `submit` returns wait for it."""
        with self.lock:
            self.run = submit()
        return self.run

    def receive(self, tokens: list[int]) -> None:
        """Take new tokens."""
        self.tokens += tokens
        if not self.body.stream:
            return
        with self.lock:
            step, backend = self.decoder.step, self.tokenizer.backend_tokenizer
            text = "".join(step(backend, token) or "" for token in tokens if token not in self.ends)
            self.told.append(self.held_back.add(text))
            parts = self._parts(self.told[-1])
            new = self._new_logprobs()
        if parts or new:
            self.tell(Event(self, parts, new))

    def finish(self, error: BaseException | None) -> None:
        """End the answer."""
        self.error = error
        if error is not None and not isinstance(error, TOLD):
            logger.error("a request failed", exc_info=error)
        with self.lock:
            parts: list[Part] = []
            try:
                if error is None:
                    parts = self._parts(self._rest(), is_last=True)
            except Exception as caught:  # told to the client
                logger.error("a request failed", exc_info=caught)
                self.error = RuntimeError("the answer cannot be read")
            new = self._new_logprobs()
        self.tell(Event(self, parts, new, is_end=True))

    def _rest(self) -> str:
        """The text that was not sent yet, up to a text or token that ends the answer."""
        tokens = self.tokens[:-1] if self.is_ended else self.tokens
        before, whole = (
            self.tokenizer.decode(ids, skip_special_tokens=self.skips_specials) for ids in (self.before, self.before + tokens)
        )
        cut = HeldBack(self.body.stop or [])
        text = cut.add(whole[len(before) :]) + cut.rest()
        self.is_cut = cut.is_over
        told = "".join(self.told)
        if text.startswith(told):  # the rest: text that was held back, and half a character
            return text[len(told) :]
        return self.held_back.rest()

    def _new_logprobs(self) -> Sequence[Logprob]:
        new = self.run.logprobs[self.num_told :]
        self.num_told += len(new)
        return new

    def _parts(self, text: str, is_last: bool = False) -> list[Part]:
        parts = self.parser.feed(text) if text else []
        if is_last:
            parts += self.parser.end()
        self.has_called |= any(kind == "tool_calls" for kind, _ in parts)
        return parts

    @property
    def is_ended(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in self.ends

    @property
    def finish_reason(self) -> str:
        if self.has_called:
            return "tool_calls"
        is_full = len(self.tokens) >= self.max_new_tokens and not self.is_ended and not self.is_cut
        return "length" if is_full else "stop"
