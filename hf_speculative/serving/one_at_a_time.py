"""Run requests that no engine takes: calls of `model.generate`, one at a time, on a thread of their own."""

from collections.abc import Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import torch
from transformers import BatchFeature, PreTrainedModel, PreTrainedTokenizerBase

from ..models import device_of
from .protocol import BadRequest
from .requests import Run, check_room, num_before


class Call(Run):
    """A call of `generate`, and its streamer."""

    has_prompt = False

    def put(self, tokens: torch.Tensor) -> None:
        if self.is_cancelled:
            raise CancelledError
        if self.has_prompt:
            self.receive(tokens.flatten().tolist())
        self.has_prompt = True  # a streamer gets the prompt first

    def end(self) -> None:
        pass


class OneAtATime:
    """Calls of one model, in order.

    Args:
        max_length: the most tokens of prompt and answer together.
        kwargs: of each call, such as options of drafts; a request's own come first.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, kwargs: Mapping[str, Any]):
        self.model, self.tokenizer, self.max_length, self.kwargs = model, tokenizer, max_length, kwargs
        self.pool = ThreadPoolExecutor(1, "hf-speculative-one-at-a-time")

    def submit(self, prompt, receive, finish, seed, num_top, media, **settings) -> Call:
        """As `Engine.submit`, for inputs of any kind; the seed is set for the call.

        Raises:
            BadRequest: log-probabilities are asked for.
            ValueError: the answer does not fit.
        """
        if num_top is not None:
            raise BadRequest("`logprobs`: a request that runs alone, as images do, has none: leave it out.", "logprobs")
        check_room(num_before(self.model, prompt), settings["max_new_tokens"], self.max_length)
        call, ids, settings = Call(receive), torch.tensor([prompt]), {**self.kwargs, **settings}
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}
        if hasattr(self.model, "has_talker"):
            settings["generation_mode"] = "text"

        def run() -> None:
            error: BaseException | None = None
            try:
                if not call.is_cancelled:
                    if seed is not None:
                        torch.manual_seed(seed)
                    given = BatchFeature(inputs).to(device_of(self.model))
                    self.model.generate(**given, **settings, streamer=call, tokenizer=self.tokenizer)
            except CancelledError:
                pass
            except Exception as caught:
                error = caught
            finish(error)

        self.pool.submit(run)
        return call

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
