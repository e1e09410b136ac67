"""A drafter in one call, from whose texts a learner learns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import GenerationConfig

from ..drafting.wrapped import WrappedDrafter
from ..interfaces import CachedModel, Drafter, Sampler
from ..types import Batch, Draft
from .recorded import Recording
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .learner import Learner

#: what a smaller `top_p` is taken for: the likeliest token alone, in any case
LEAST_TOP_P = 1e-6


class Followed(WrappedDrafter):
    """Tells `learner` what happens in a call, and lets it work between rounds."""

    def __init__(self, drafter: Drafter, learner: Learner, generation_config: GenerationConfig):
        super().__init__(drafter)
        self.learner, self.generation_config = learner, generation_config

    def follow(self, target: CachedModel) -> None:
        self.drafter.follow(target)
        read = target if self.learner.teacher.layers else None
        self.recording = Recording(read, self.learner.has_room_for, self.learner.max_length)

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.drafter.begin(batch, sampler)
        self.learner.use = used(self.generation_config)
        self.since = time.perf_counter()

    def observe(self, batch: Batch, draft: Draft, logits: Tensor) -> None:
        self.drafter.observe(batch, draft, logits)
        self.recording.observe(batch, logits)

    def rollback(self, batch: Batch) -> None:
        self.drafter.rollback(batch)
        self.recording.end_round(batch)
        self.learner.spend(time.perf_counter() - self.since)
        self.since = time.perf_counter()

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        self.drafter.learn(prompt, answer)
        self.learner.take(prompt, answer, self.recording.take(prompt, answer))


def used(config: GenerationConfig) -> SamplingParams:
    """How a call draws its tokens."""
    if not config.do_sample:
        return SamplingParams(temperature=0.0)
    top_p = 1.0 if config.top_p is None else min(1.0, max(LEAST_TOP_P, config.top_p))
    return SamplingParams(config.temperature or 1.0, max(0, config.top_k or 0), top_p)
