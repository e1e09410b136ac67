"""Tokenising beside the event loop: a long prompt takes seconds, in which the server answers others."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_known: ContextVar[dict[str, Any] | None] = ContextVar("_known", default=None)


class Unknown(Exception):
    """A result that has to be computed first."""

    def __init__(self, name: str, call: Callable[[], Any]):
        self.name, self.call = name, call


class OffLoop:
    """A tokenizer or processor inside `off_loop`: what it makes of a prompt was computed on another thread."""

    def __init__(self, processor):
        self._processor = processor

    def __call__(self, *args, **kwargs):
        return self._result("__call__", lambda: self._processor(*args, **kwargs))

    def apply_chat_template(self, *args, **kwargs):
        return self._result("apply_chat_template", lambda: self._processor.apply_chat_template(*args, **kwargs))

    def __getattr__(self, name: str):
        value = getattr(self._processor, name)
        return OffLoop(value) if name == "tokenizer" else value

    @staticmethod
    def _result(name: str, call: Callable[[], Any]):
        known = _known.get()
        if known is None:
            return call()
        if name not in known:
            raise Unknown(name, call)
        return known[name]


async def off_loop(handle: Callable[[], Awaitable[T]]) -> T:
    """Run `handle` up to its first call of an `OffLoop`, make that call on another thread, and run it again with the result.

    Up to there `handle` may do nothing that counts: transformers' handlers check their request.
    """
    known: dict[str, Any] = {}
    token = _known.set(known)
    try:
        while True:
            try:
                return await handle()
            except Unknown as unknown:
                known[unknown.name] = await asyncio.to_thread(unknown.call)
    finally:
        _known.reset(token)
