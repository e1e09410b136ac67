"""Keep what the target computes while it decodes a text, so that a lesson takes no second pass of it.

As engines that train drafts on their traffic do (Aurora, arXiv 2602.06932).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..interfaces import CachedModel
from ..types import Batch, uploaded
from .teacher import Collator, Example, Teacher, TeacherOutputs


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
    num_states: int = 0


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
        counts = [len(text.ids) - 1 - text.num_states for text in texts]
        first = uploaded([text.num_states for text in texts], batch.tokens.device)
        positions = first[:, None] + torch.arange(max(counts), device=batch.tokens.device)
        for text, count, states in zip(texts, counts, self.target.hidden_states(positions, lanes), strict=True):
            text.states.append(states[:count].clone())
            text.num_states += count

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
    batch = {name: tensor.to(device) for name, tensor in Collator()([text.example for text in texts]).items()}
    size = batch["input_ids"].shape
    logits, states = (
        parts[0].new_zeros(*size, parts[0].shape[-1], device=device)
        for parts in ([text.logits for text in texts], [text.states for text in texts])
    )
    for row, text in enumerate(texts):
        start, end = len(text.example.prompt_ids) - 1, text.example.num_tokens - 1
        logits[row, start:end] = text.logits[: end - start]
        known = text.states[:end]  # a stop may have cut the text within its last pass
        states[row, : len(known)] = known
    return TeacherOutputs(batch["input_ids"], batch["attention_mask"], Teacher.counted(batch["labels"]), logits, states)
