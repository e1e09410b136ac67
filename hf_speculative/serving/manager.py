"""What transformers' server asks for tokens: its generation manager, on top of the engine."""

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from ..call.statistics import RowStatistics
from ..hf_compat.serving import (
    BaseGenerateManager,
    DirectStreamer,
    GenerateManager,
    GenerationCancelled,
    GenerationState,
    StreamError,
)
from ..types import NoDistribution
from .engine import DEFAULT_MAX_LENGTH, Closed, Engine, QueueFull
from .fields import CHARACTERS_PER_TOKEN
from .requests import Request
from .stops import HeldBack, StopTexts, without_stop

logger = logging.getLogger(__name__)
#: counts of so many requests that ended are kept until they are asked for
MOST_KEPT = 4096
#: errors whose words are for the client
TOLD = (ValueError, TypeError, NoDistribution, QueueFull, Closed)


def words_of(error: BaseException) -> str:
    """What a client is told: nothing of this machine."""
    return str(error) if isinstance(error, TOLD) else f"the request failed ({type(error).__name__})"


class Counts(NamedTuple):
    """Of a request that ended: its drafts, and tokens of its prompt that had not to be read."""

    statistics: RowStatistics
    num_cached: int


class Streamer(DirectStreamer):
    """transformers' streamer of one answer; to cancel it gives the lane back with the round under way."""

    request: Request | None = None
    held_back: HeldBack | None = None

    def _enqueue(self, item) -> None:
        if self.held_back is not None and type(item) is str:
            item = self.held_back.add(item)
        elif self.held_back is not None and item is None and (rest := self.held_back.rest()):
            super()._enqueue(rest)
        if item != "":
            super()._enqueue(item)

    def receive(self, tokens: list[int]) -> None:
        self.put(torch.tensor(tokens))

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self.end()
        else:
            # transformers writes the message between quotes as it is
            self._enqueue(StreamError(json.dumps(words_of(error))[1:-1]))

    def cancel(self) -> None:
        super().cancel()
        if self.request is not None:
            self.request.cancel()


class EngineManager(BaseGenerateManager):
    """Answers from the engine; inputs other than text go to transformers' own manager, one request at a time."""

    def __init__(self, engine: Engine | None):
        self.engine, self.others = engine, GenerateManager()
        self._requests: dict[str, Request] = {}
        self._ended: OrderedDict[str, Counts] = OrderedDict()
        self._lock = threading.Lock()

    def generate_streaming(self, model, processor, inputs, gen_config, request_id, response_parser=None):
        stops = gen_config.__dict__.pop("stop_texts", [])
        queue: asyncio.Queue = asyncio.Queue()
        tokenizer = getattr(processor, "tokenizer", processor).backend_tokenizer
        streamer = Streamer(tokenizer, asyncio.get_running_loop(), queue, response_parser)
        streamer.held_back = HeldBack(stops) if stops else None
        criteria = [StopTexts(tokenizer, stops)] if stops else []
        if self._is_for_engine(inputs):
            streamer.put(inputs["input_ids"][0])  # which it leaves out
            streamer.request = self._submit(request_id, inputs, gen_config, criteria, streamer.receive, streamer.finish)
            return queue, streamer
        call = _call(inputs, gen_config, criteria) | {"streamer": streamer, "tokenizer": processor}
        if hasattr(model, "has_talker"):  # as in transformers' own manager
            call["generation_mode"] = "text"

        def run() -> None:
            try:
                model.generate(**call)
            except GenerationCancelled:
                streamer.finish(None)
            except Exception as error:
                streamer.finish(error)

        self.others.submit(run)
        return queue, streamer

    async def generate_non_streaming(self, model, processor, inputs, gen_config, request_id):
        stops = gen_config.__dict__.pop("stop_texts", [])
        criteria = [StopTexts(getattr(processor, "tokenizer", processor).backend_tokenizer, stops)] if stops else []
        if not self._is_for_engine(inputs):
            call = _call(inputs, gen_config, criteria)
            text, *rest = await self.others.generate_non_streaming(model, processor, call, gen_config, request_id)
            return without_stop(text, stops), *rest
        loop = asyncio.get_running_loop()
        is_done: asyncio.Future[None] = loop.create_future()
        new_ids: list[int] = []

        def end(error: BaseException | None) -> None:
            if not is_done.done():
                is_done.set_result(None) if error is None else is_done.set_exception(error)

        def finish(error: BaseException | None) -> None:
            loop.call_soon_threadsafe(end, error)

        self._submit(request_id, inputs, gen_config, criteria, new_ids.extend, finish)
        await is_done
        text = without_stop(processor.decode(new_ids, skip_special_tokens=True), stops)
        return text, inputs["input_ids"].shape[-1], torch.tensor(new_ids)

    @property
    def most_characters(self) -> int:
        """Of a prompt that is worth reading."""
        limit = DEFAULT_MAX_LENGTH if self.engine is None else self.engine.max_length
        return CHARACTERS_PER_TOKEN * limit

    def async_submit(self, call, *args, **kwargs) -> asyncio.Future:
        """What transformers' other endpoints run on the model: one at a time, on its own thread."""
        return self.others.async_submit(call, *args, **kwargs)

    def submit(self, call, *args, **kwargs):
        return self.others.submit(call, *args, **kwargs)

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this request any more."""
        with self._lock:
            request = self._requests.get(request_id)
        if request is not None:
            request.cancel()

    def counts_of(self, request_id: str) -> Counts | None:
        """Counts of a request that ended, once."""
        with self._lock:
            return self._ended.pop(request_id, None)

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.close()

    def _is_for_engine(self, inputs) -> bool:
        return self.engine is not None and set(inputs) <= {"input_ids", "attention_mask", "token_type_ids"}

    def _submit(self, request_id: str, inputs, gen_config, criteria, receive, finish) -> Request:
        assert self.engine is not None
        ids = inputs["input_ids"][0].tolist()
        # What the handler has set on its own copy of the config.
        seed, may_be_shorter = (gen_config.__dict__.pop(name, None) for name in ("seed", "may_be_shorter"))
        if may_be_shorter:
            gen_config.max_new_tokens = max(1, min(gen_config.max_new_tokens, self.engine.max_length - len(ids)))
        if gen_config.pad_token_id is None:
            gen_config.pad_token_id = self.engine.pad

        def finished(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, TOLD):
                logger.error("request %s failed", request_id, exc_info=error)
            with self._lock:
                request = self._requests.pop(request_id, None)
                if request is not None:
                    self._ended[request_id] = Counts(request.statistics, request.num_cached)
                while len(self._ended) > MOST_KEPT:
                    self._ended.popitem(last=False)
            finish(error)

        with self._lock:
            settings = {"generation_config": gen_config, "stopping_criteria": criteria}
            request = self.engine.submit(ids, receive, finished, seed, **settings)
            self._requests[request_id] = request
        return request


def _call(inputs, gen_config, criteria) -> dict[str, Any]:
    """Keywords of `generate`, without what is not for a model."""
    for name in ("seed", "may_be_shorter"):
        gen_config.__dict__.pop(name, None)
    return {**inputs, "generation_config": gen_config} | ({"stopping_criteria": criteria} if criteria else {})


class EngineState(GenerationState):
    """Which manager serves a request: always the one."""

    def __init__(self, model: PreTrainedModel, manager: EngineManager):
        super().__init__()
        self.model, self.manager = model, manager

    def use_continuous_batching(self, model: Any, modality: Any) -> bool:
        return False  # of transformers' kind

    def get_manager(self, model_id: str, use_cb: bool = False) -> BaseGenerateManager:
        return self.manager

    def is_cb_alive(self) -> bool:
        return self.manager.engine is None or self.manager.engine.is_alive

    def shutdown(self) -> None:
        self.manager.stop()
