"""Bodies of answers in OpenAI's format: whole, or chunks of a stream."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..call.statistics import RowStatistics
from ..tokenizers.vocabulary import vocabulary_of
from .protocol import Sampling, StreamOptions
from .replies import Event, Part, Reply
from .requests import Logprob


def sse(body: Any) -> str:
    """An event of a stream."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage_of(replies: Sequence[Reply], prompt: str = "prompt", answer: str = "completion") -> dict[str, Any]:
    """The `usage` of an answer; draft tokens are counted as OpenAI's predicted tokens."""
    prompts = {id(reply.prompt): reply for reply in replies}.values()  # `n` answers to one prompt
    num_prompt, num_new = sum(len(one.prompt) for one in prompts), sum(len(one.tokens) for one in replies)
    num_cached, counts = sum(one.run.num_cached for one in prompts), [one.run.statistics for one in replies]
    num_drafted, num_kept = sum(one.num_draft_tokens for one in counts), sum(one.num_accepted_draft_tokens for one in counts)
    return {
        f"{prompt}_tokens": num_prompt,
        f"{answer}_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        f"{prompt}_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
        f"{answer}_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": num_kept,
            "rejected_prediction_tokens": num_drafted - num_kept,
        },
    }


def metrics_of(replies: Sequence[Reply]) -> dict[str, Any]:
    """Statistics of drafts of replies that have ended, where an engine counted them."""
    counts = RowStatistics()
    for reply in replies:
        counts += reply.run.statistics
    return {"metrics": {"speculative_decoding": counts.to_dict()}} if counts.num_new_tokens else {}


class Answer:
    """The answer of `/v1/chat/completions`, whole or as a stream.

    Args:
        body: the request.
        model: its name.
    """

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    failed = staticmethod(sse)

    def __init__(self, body: Sampling, model: str, tokenizer: PreTrainedTokenizerBase):
        self.body, self.model = body, model
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        self.tokenizer, self.token_bytes = tokenizer, lru_cache(4096)(self._bytes)
        if body.num_top is not None:
            self.vocabulary = vocabulary_of(tokenizer)
        # by the index of the reply
        self.choices: dict[int, dict[str, Any]] = {}
        self.num_calls: Counter[int] = Counter()
        self.num_characters: Counter[int] = Counter()

    def _bytes(self, token: int) -> bytes:
        return self.vocabulary.piece(token) or self.tokenizer.decode([token]).encode()

    def _text_of(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    # ---- whole

    def add(self, event: Event) -> None:
        """Take the only event of a reply that is not streamed."""
        self.choices[event.reply.index] = self._choice(event.reply, event.parts, event.logprobs)

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        head = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        choices = [self.choices[reply.index] for reply in replies]
        return head | {"choices": choices, "usage": usage_of(replies)} | metrics_of(replies)

    def _choice(self, reply: Reply, parts: Sequence[Part], logprobs: Sequence[Logprob]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": _joined(parts, "content") or None, "refusal": None}
        if thoughts := _joined(parts, "reasoning_content"):
            message["reasoning_content"] = thoughts
        if calls := [value for kind, value in parts if kind == "tool_calls"]:
            message["tool_calls"] = calls
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": reply.index, "message": message, "finish_reason": reply.finish_reason}
        return choice | {"logprobs": self._logprobs(logprobs)}

    def _logprobs(self, logprobs: Sequence[Logprob]) -> dict[str, Any] | None:
        if self.body.num_top is None:
            return None

        def told(token: int, logprob: float) -> dict[str, Any]:
            return {"token": self._text_of(token), "logprob": logprob, "bytes": list(self.token_bytes(token))}

        tokens = [told(n.token, n.logprob) | {"top_logprobs": [told(*pair) for pair in n.top]} for n in logprobs]
        return {"content": tokens, "refusal": None}

    # ---- as a stream

    def begin(self, replies: Sequence[Reply]) -> str:
        first = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return "".join(self._chunk([{"index": reply.index, **first}]) for reply in replies)

    def chunks(self, event: Event, replies: Sequence[Reply], is_last: bool) -> Iterator[str]:
        """The chunks of an event; `is_last`: it ends the last reply."""
        reply, options = event.reply, self.body.stream_options or StreamOptions()
        so_far = {"usage": usage_of(replies)} if options.continuous_usage_stats else {}
        yield from (self._chunk([choice], so_far) for choice in self._deltas(reply, event.parts, event.logprobs))
        if event.is_end:
            counts = metrics_of(replies) if is_last else {}
            yield self._chunk([self._end(reply)], so_far if options.include_usage else so_far | counts)
            if is_last and options.include_usage:
                yield self._chunk([], {"usage": usage_of(replies)} | counts)
            if is_last:
                yield "data: [DONE]\n\n"

    def _end(self, reply: Reply) -> dict[str, Any]:
        return {"index": reply.index, "delta": {}, "finish_reason": reply.finish_reason}

    def _deltas(self, reply: Reply, parts: Sequence[Part], logprobs: Sequence[Logprob]) -> Iterator[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for kind, value in parts:
            if kind == "tool_calls":
                deltas.append({"tool_calls": [{"index": self.num_calls[reply.index]} | value]})
                self.num_calls[reply.index] += 1
            elif deltas and kind in deltas[-1]:
                deltas[-1][kind] += value
            else:
                deltas.append({kind: value})
        if logprobs and not deltas:
            deltas.append({"content": ""})
        for nth, delta in enumerate(deltas):
            choice = {"index": reply.index, "delta": delta, "finish_reason": None}
            if self.body.num_top is not None:
                choice["logprobs"] = self._logprobs(logprobs) if nth == 0 else None
            yield choice

    def _chunk(self, choices: list[dict[str, Any]], more: dict[str, Any] | None = None) -> str:
        head = {"id": self.id, "object": self.chunk_kind, "created": self.created, "model": self.model}
        return sse(head | {"choices": choices} | (more or {}))


class TextAnswer(Answer):
    """`/v1/completions`"""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"
    body: Any

    def _echoed(self, reply: Reply) -> tuple[str, list[Logprob]]:
        """The prompt, if the request wants an echo; its first token has no log-probability."""
        if not self.body.echo:
            return "", []
        first = Logprob(reply.prompt[0], float("nan"), [])
        given = self.body.prompt[reply.index // (self.body.n or 1)]
        is_whole = self.body.skip_special_tokens is False
        text = given if isinstance(given, str) else self.tokenizer.decode(given, skip_special_tokens=not is_whole)
        return text, [first, *(reply.prompt_logprobs or [])]

    def _choice(self, reply: Reply, parts: Sequence[Part], logprobs: Sequence[Logprob]) -> dict[str, Any]:
        text, before = self._echoed(reply)
        choice = self._text(reply, text + _joined(parts, "content"), [*before, *logprobs])
        return choice | {"finish_reason": reply.finish_reason}

    def begin(self, replies: Sequence[Reply]) -> str:
        echoed = [(reply, *self._echoed(reply)) for reply in replies]
        return "".join(self._chunk([self._text(reply, text, before)]) for reply, text, before in echoed if text or before)

    def _deltas(self, reply: Reply, parts: Sequence[Part], logprobs: Sequence[Logprob]) -> Iterator[dict[str, Any]]:
        if parts or logprobs:
            yield self._text(reply, _joined(parts, "content"), logprobs)

    def _end(self, reply: Reply) -> dict[str, Any]:
        return self._text(reply, "", None) | {"finish_reason": reply.finish_reason}

    def _text(self, reply: Reply, text: str, logprobs: Sequence[Logprob] | None) -> dict[str, Any]:
        told = self._text_logprobs(reply, logprobs)
        return {"index": reply.index, "text": text, "logprobs": told, "finish_reason": None}

    def _text_logprobs(self, reply: Reply, logprobs: Sequence[Logprob] | None) -> dict[str, Any] | None:
        if self.body.num_top is None or logprobs is None:
            return None
        texts, offsets = [self._text_of(one.token) for one in logprobs], []
        skipped = self.vocabulary.specials if self.body.skip_special_tokens is not False else ()
        for one, text in zip(logprobs, texts, strict=True):
            offsets.append(self.num_characters[reply.index])
            self.num_characters[reply.index] += 0 if one.token in skipped else len(text)
        top: list[Any] = []
        for one in logprobs:
            top.append({})
            for token, value in [*one.top, (one.token, one.logprob)]:  # of tokens with the same text, the likelier one
                text = self._text_of(token)
                top[-1][text] = max(value, top[-1].get(text, value))
        values: list[Any] = [one.logprob for one in logprobs]
        if values and values[0] != values[0]:
            values[0] = top[0] = None
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _joined(parts: Sequence[Part], kind: str) -> str:
    return "".join(value for name, value in parts if name == kind)
