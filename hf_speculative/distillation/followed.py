"""A drafter in one call, from whose texts a learner learns."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers import GenerationConfig

from ..drafting.wrapped import WrappedDrafter
from ..interfaces import CachedModel, Drafter, Sampler
from ..models import Inputs
from ..types import Batch, Draft
from .recorded import Recording
from .sampling_params import SamplingParams

T = TypeVar("T")
#: what a smaller `top_p` is taken for: the likeliest token alone, in any case
LEAST_TOP_P = 1e-6


class Followed(WrappedDrafter):
    """Tell `learner` what happens in a call, and let it work between rounds.

    Args:
        learner: a `Learner`.
        inputs: of the call.
    """

    def __init__(self, drafter: Drafter, learner: Any, inputs: Inputs):
        super().__init__(drafter)
        self.learner, self.inputs = learner, inputs
        self.recording: Recording | None = None

    def follow(self, target: CachedModel) -> None:
        self.drafter.follow(target)
        layers = self.learner.teacher.layers
        # Another source may draft in this call; and states are found by the position in a text alone.
        has_states = tuple(self.drafter.hidden_layers) == layers and self.inputs.prompt.is_left_padded
        if (has_states or not layers) and not has_dropout(self.learner.teacher.target):
            self.recording = Recording(target if layers else None, self.learner.has_room_for, self.learner.max_length)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.drafter.begin(batch, sampler)
        self.learner.use = used(self.inputs.generation_config)
        self.since = time.perf_counter()

    def observe(self, batch: Batch, draft: Draft, logits: Tensor) -> None:
        self.drafter.observe(batch, draft, logits)
        self._record(lambda recording: recording.observe(batch, logits))

    def rollback(self, batch: Batch) -> None:
        self.drafter.rollback(batch)
        self._record(lambda recording: recording.end_round(batch))
        self.learner.spend(time.perf_counter() - self.since)
        self.since = time.perf_counter()

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        self.drafter.learn(prompt, answer)
        self.learner.take(prompt, answer, self._record(lambda recording: recording.take(prompt, answer)))

    def _record(self, do: Callable[[Recording], T]) -> T | None:
        """Do something with the recording, if there is one; an error ends it, and learning."""
        recording, self.recording = self.recording, None
        if recording is not None and not self.learner.is_frozen:
            try:
                done, self.recording = do(recording), recording
                return done
            except Exception as error:
                self.learner.fail(error)
        return None


def has_dropout(model: nn.Module) -> bool:
    """Whether a pass of `model` leaves out some values by chance."""
    named = (
        value
        for module in model.modules()
        if module.training
        for name, value in vars(module).items()
        if "dropout" in name or (name == "p" and isinstance(module, nn.Dropout))
    )
    return any(isinstance(value, float) and value > 0 for value in named)


def used(config: GenerationConfig) -> SamplingParams:
    """How a call draws its tokens."""
    if not config.do_sample:
        return SamplingParams(temperature=0.0)
    top_p = 1.0 if config.top_p is None else min(1.0, max(LEAST_TOP_P, config.top_p))
    return SamplingParams(config.temperature or 1.0, max(0, config.top_k or 0), top_p)
