"""A drafter in one call, from whose texts a learner learns, and what is recorded and held out of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from ..drafting.wrapped import WrappedDrafter
from ..interfaces import CachedModel, Drafter, Sampler
from ..models import Inputs
from ..types import Batch, Draft, uploaded
from .sampling_params import SamplingParams
from .teacher import Example, Teacher, TeacherOutputs, collated

T = TypeVar("T")
#: what a smaller `top_p` is taken for: the likeliest token alone, in any case
LEAST_TOP_P = 1e-6
#: one prompt in ONE_IN is held out; the sides of MOST_PROMPTS are remembered
ONE_IN, MOST_PROMPTS = 5, 4096


@dataclass(frozen=True)
class Recorded:
    """A finished text, on the host.

    Attributes:
        example: its tokens.
        logits: `(n, vocab)` of the target, of at least the n tokens of the answer.
        states: `(n, size)` of the target, of at least all tokens but the last; of size 0 if none are read.
    """

    example: Example
    logits: Tensor
    states: Tensor


@dataclass
class _Running:
    """A text that is being decoded: its tokens, and what each pass gave of them."""

    ids: Sequence[int] = ()
    logits: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)


class Recording:
    """Record some rows of a call, from their prompts on.

    Args:
        target: whose states are kept as well, if they are read.
        has_room_for: whether to record a text, by its prompt and the number of texts that are being recorded.
        max_length: the number of tokens after which no more of a text is kept.
    """

    def __init__(self, target: CachedModel | None, has_room_for: Callable[[Sequence[int], int], bool], max_length: int):
        self.target, self.has_room_for, self.max_length = target, has_room_for, max_length
        self.texts: dict[int, _Running] = {}
        self.rows: set[int] = set()

    def observe(self, batch: Batch, logits: Tensor) -> None:
        """Note what a pass gave: `logits (batch, k + 1, vocab)`, before and after each draft token."""
        self.logits, self.lengths = logits, list(map(len, batch.history))
        running = set(batch.rows)
        self.texts = {row: text for row, text in self.texts.items() if row in running}
        for row, history in zip(batch.rows, batch.history, strict=True):
            if row not in self.rows and self.has_room_for(history, len(self.texts)):
                self.texts[row] = _Running()
        self.rows = running

    def end_round(self, batch: Batch) -> None:
        """Keep what belongs to the tokens that were accepted; `batch` has its new lengths."""
        logits = self.logits
        del self.logits
        lanes = [lane for lane, row in enumerate(batch.rows) if row in self.texts]
        lanes = [lane for lane in lanes if self.lengths[lane] < self.max_length]
        if not lanes:
            return
        places, counts = list[tuple[int, int]](), list[int]()
        for lane in lanes:
            counts.append(len(batch.history[lane]) - self.lengths[lane])
            nodes = range(counts[-1] - 1) if batch.host_path is None else batch.host_path[lane]
            places += [(lane, 0), *((lane, node + 1) for node in nodes)]
        rows, columns = uploaded(places, logits.device).T
        texts = [self.texts[batch.rows[lane]] for lane in lanes]
        for lane, text, part in zip(lanes, texts, logits[rows, columns].split(counts), strict=True):
            text.ids = batch.history[lane]
            text.logits.append(part)
        if self.target is None:
            return
        known = [sum(map(len, text.states)) for text in texts]
        counts = [len(text.ids) - 1 - num for text, num in zip(texts, known, strict=True)]
        first = uploaded(known, batch.tokens.device)
        positions = first[:, None] + torch.arange(max(counts), device=batch.tokens.device)
        for text, count, states in zip(texts, counts, self.target.hidden_states(positions, lanes), strict=True):
            text.states.append(states[:count].clone())

    def take(self, prompt: Sequence[int], answer: Sequence[int]) -> Recorded | None:
        """Finish a text, and return what was recorded of it, if anything."""
        ids = [*prompt, *answer]
        for row, text in self.texts.items():
            known = text.ids[: len(ids)]
            if len(text.ids) >= min(len(ids), self.max_length) and known == ids[: len(known)]:
                del self.texts[row]
                example = Example(tuple(prompt), tuple(answer[: self.max_length - len(prompt)]))
                logits = torch.cat(text.logits).cpu()
                return Recorded(example, logits, torch.cat(text.states).cpu() if text.states else logits[:, :0])
        return None


@torch.no_grad()
def lesson_of(texts: Sequence[Recorded], device: torch.device) -> TeacherOutputs:
    """Make what a teacher would give for these texts; logits of prompts are zeros."""
    batch = {name: tensor.to(device) for name, tensor in collated([text.example for text in texts]).items()}
    size, of_first = batch["input_ids"].shape, texts[0]
    logits = of_first.logits.new_zeros(*size, of_first.logits.shape[-1], device=device)
    states = of_first.states.new_zeros(*size, of_first.states.shape[-1], device=device)
    for row, text in enumerate(texts):
        start, end = len(text.example.prompt_ids) - 1, text.example.num_tokens - 1
        logits[row, start:end] = text.logits[: end - start]
        known = text.states[:end]  # a stop may have cut the text within its last pass
        states[row, : len(known)] = known
    return TeacherOutputs(batch["input_ids"], batch["attention_mask"], Teacher.counted(batch["labels"]), logits, states)


class HeldOut:
    """Tells whether texts that begin with a prompt are judged by, not learned from: by the prompt, so that none is both.

    Prompts take turns as they first appear, and the second one is held out, so that few are enough.
    """

    def __init__(self) -> None:
        self.known, self.num = dict[int, bool](), 0

    def __call__(self, prompt: Sequence[int]) -> bool:
        key = hash(tuple(prompt))
        if key not in self.known:
            while len(self.known) >= MOST_PROMPTS:  # threads may each have added one
                self.known.pop(next(iter(self.known)), None)
            self.known[key], self.num = self.num % ONE_IN == 1, self.num + 1
        return self.known[key]


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
    modules = [module for module in model.modules() if module.training]
    named = [value for module in modules for name, value in vars(module).items() if "dropout" in name]
    named += [module.p for module in modules if isinstance(module, nn.Dropout)]
    return any(isinstance(value, float) and value > 0 for value in named)


def used(config: GenerationConfig) -> SamplingParams:
    """How a call draws its tokens."""
    if not config.do_sample:
        return SamplingParams(temperature=0.0)
    top_p = 1.0 if config.top_p is None else min(1.0, max(LEAST_TOP_P, config.top_p))
    return SamplingParams(config.temperature or 1.0, max(0, config.top_k or 0), top_p)
