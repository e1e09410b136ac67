"""Keep what the target computes while it decodes a text, so that a lesson takes no second pass of it.

As engines that train drafts on their traffic do (Aurora, arXiv 2602.06932).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..interfaces import CachedModel
from ..types import Batch
from .teacher import Collator, Example, Teacher, TeacherOutputs


@dataclass
class Recorded:
    """One text.

    Attributes:
        ids: of all tokens.
        logits: of the target, `(n, vocab)` of each pass, the n tokens of the answer that it gave.
        states: of the target, `(n, size)` of each pass, n tokens in turn; the newest one has none. Empty if none are read.
    """

    ids: Sequence[int] = ()
    logits: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    @property
    def num_states(self) -> int:
        return sum(map(len, self.states))


class Recording:
    """Records some rows of a call, from their prompts on.

    Args:
        target: whose states are kept as well, if they are read.
        has_room_for: whether to record a text, by its prompt and the number of texts that are being recorded.
        max_length: a text that gets longer is not kept.
    """

    def __init__(self, target: CachedModel | None, has_room_for: Callable[[Sequence[int], int], bool], max_length: int):
        self.target, self.has_room_for, self.max_length = target, has_room_for, max_length
        self.texts: dict[int, Recorded] = {}
        self.rows: set[int] = set()

    def observe(self, batch: Batch, logits: Tensor) -> None:
        """The target gave `logits (batch, k + 1, vocab)`, before and after each draft token."""
        self.logits, self.lengths = logits, list(map(len, batch.history))
        running = set(batch.rows)
        self.texts = {row: text for row, text in self.texts.items() if row in running}
        for row, history in zip(batch.rows, batch.history, strict=True):
            if row not in self.rows and self.has_room_for(history, len(self.texts)):
                self.texts[row] = Recorded()
        self.rows = running

    def end_round(self, batch: Batch) -> None:
        """Some of the tokens were kept, and `batch` has its new lengths."""
        lanes = {lane: self.texts[row] for lane, row in enumerate(batch.rows) if row in self.texts}
        for lane, text in list(lanes.items()):
            text.ids = batch.history[lane]
            if len(text.ids) > self.max_length:
                del self.texts[batch.rows[lane]], lanes[lane]
                continue
            num_new = len(text.ids) - self.lengths[lane]
            nodes = range(num_new - 1) if batch.host_path is None else batch.host_path[lane]
            text.logits.append(self.logits[lane, [0, *(node + 1 for node in nodes)]])
        del self.logits
        if self.target is None or not lanes:
            return
        first = [lanes[lane].num_states if lane in lanes else 0 for lane in range(len(batch.rows))]
        counts = {lane: len(text.ids) - 1 - text.num_states for lane, text in lanes.items()}
        ahead = torch.arange(max(counts.values()), device=batch.tokens.device)
        states = self.target.hidden_states(torch.tensor(first, device=ahead.device)[:, None] + ahead)
        for lane, text in lanes.items():
            text.states.append(states[lane, : counts[lane]].clone())

    def take(self, prompt: Sequence[int], answer: Sequence[int]) -> Recorded | None:
        """What is known of a text that is finished; `None` if it was not recorded."""
        ids = [*prompt, *answer]
        for row, text in self.texts.items():
            if text.ids[: len(ids)] == ids:
                return self.texts.pop(row)
        return None


@torch.no_grad()
def lesson_of(texts: Sequence[tuple[Example, Recorded]], device: torch.device) -> TeacherOutputs:
    """What a teacher would give for these texts; logits of prompts are zeros."""
    batch = {name: tensor.to(device) for name, tensor in Collator()([example for example, _ in texts]).items()}
    counted = Teacher.counted(batch["labels"])
    logits = torch.cat([torch.cat(text.logits)[: len(example.new_ids)] for example, text in texts]).to(device)
    placed = logits.new_zeros(*counted.shape, logits.shape[-1])
    placed[counted] = logits
    of_texts = [torch.cat(text.states) if text.states else logits.new_zeros(0, 0) for _, text in texts]
    states = of_texts[0].new_zeros(*counted.shape, of_texts[0].shape[-1], device=device)
    for row, (known, (example, _)) in enumerate(zip(of_texts, texts, strict=True)):
        length = min(len(known), example.num_tokens - 1)  # a stop may have cut the text within its last pass
        states[row, :length] = known[:length]
    return TeacherOutputs(batch["input_ids"], batch["attention_mask"], counted, placed, states)
