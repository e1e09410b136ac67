"""Let the draft of an attached model learn from the texts that it helps to decode.

Online distillation, as Liu et al. 2024 (arXiv 2310.07177): the draft is trained on the target's own answers, here on a copy
that takes over where it is accepted more often. Only proposals change, so every promise about the output stays.
"""

from __future__ import annotations

import copy
import heapq
import math
import os
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..call.option_types import wrong_type
from ..interfaces import Drafter
from ..models import Inputs, device_of, is_sharded, is_tested_multimodal, max_positions_of
from ..models.loading import load_model
from ..reports import files
from .followed import Followed, HeldOut, Recorded, lesson_of
from .kinds import check_fits, student_of
from .objective import LOSSES, Objective, acceptance, agreement
from .sampling_params import SamplingParams
from .teacher import Example, Student, Teacher, TeacherOutputs, collated

#: texts of a step, few so that its pause is short, and the most tokens of each
TEXTS, MAX_LENGTH = 2, 512
#: the newest texts, to learn from and to judge by
TO_LEARN_FROM, TO_JUDGE_BY = 256, 16
#: the fewest texts to learn from and to judge by; the fewest and most steps between two judgements, else half of all so far
ENOUGH, FEWEST_STEPS, MOST_STEPS = 8, 16, 128
#: texts that are recorded at a time, or wait to be learned from once; and how many texts later one is replaced
MOST_RECORDED, FRESH = 2 * TEXTS, 32
#: standard errors by which one of two drafts has to be better, by all texts and by the first ENOUGH or more
CLEARLY, AT_ONCE = 2.0, 3.0
#: how often each text is learned from while nothing is decoded
TIMES_WHEN_IDLE = 4
#: of a draft that was trained before
LEARNING_RATE = 5e-4
#: the share of the time, its part until learning has helped, and the seconds that may be saved up, so that no pause gets long
SHARE, AT_FIRST, MOST_SAVED = 0.05, 0.6, 1.0

#: steps of learners in other threads wait for the next round
_learning = threading.Lock()


class Learner:
    """Trains a copy of a draft while the draft is in use, for `attach(..., learn=Learner(...))`.

    Texts are kept in memory alone. Steps come between rounds, and take `share` of the time of decoding. A server also learns
    while it has no requests.

    Args:
        folder: where the draft is saved whenever it got better, as `draft_model=` takes it. A draft that is there already is
            used in place of the one given to `attach`.
        share: of the time, the most that learning takes, and 0.6 of it until the draft got better once.
        learning_rate: of AdamW.
        weigh: gives the weight of a text by its prompt and answer, as lists of ids: how often it is learned from, 0 or more.
            In reinforcement learning, a reward (ReSpec, arXiv 2510.26475). Default: all alike.

    Attributes:
        is_frozen: set it to stop learning, and again to go on.
        num_texts: taken to learn from or to judge by so far.
        num_steps: of the optimizer so far.
        num_taken_over: how often the copy was better, and its weights the draft's from then on.
        seconds: what learning has taken so far.

    Raises:
        ValueError: a value out of range.
    """

    teacher: Teacher

    def __init__(
        self,
        folder: str | os.PathLike | None = None,
        share: float = SHARE,
        learning_rate: float = LEARNING_RATE,
        weigh: Callable[[list[int], list[int]], float] | None = None,
    ):
        if not 0 < share < 1:
            raise ValueError(f"`share={share}` of the time: give a number between 0 and 1.")
        if folder is not None and not os.fspath(folder):
            raise ValueError("`learn=''` names no folder: give one, or True.")
        if not learning_rate > 0:
            raise ValueError(f"`learning_rate={learning_rate}` learns nothing: give a positive number.")
        self.folder = None if folder is None else Path(folder).absolute()
        if weigh is not None and not callable(weigh):
            raise wrong_type("weigh", weigh, "a function of prompt and answer")
        self.share, self.learning_rate, self.weigh = share, learning_rate, weigh
        self.draft: PreTrainedModel | None = None
        self.is_frozen = False
        self.num_texts = self.num_steps = self.num_taken_over = 0
        self.seconds = 0.0

    @classmethod
    def of(cls, learn: bool | str | os.PathLike | Learner) -> Learner:
        """What `attach(learn=...)` asks for.

        Raises:
            TypeError: nothing that it knows.
        """
        if isinstance(learn, cls):
            return learn
        if learn is not True and not isinstance(learn, (str, os.PathLike)):
            raise wrong_type("learn", learn, "True, a folder, or a hf_speculative.Learner")
        return cls(None if learn is True else learn)

    def begin(self, target: PreTrainedModel, draft: Any) -> PreTrainedModel:
        """Start to learn for a target; returns the draft to use, a copy of the one given.

        Raises:
            ValueError: the draft, or the target, is none that can be learned for.
        """
        if not isinstance(draft, PreTrainedModel):
            raise ValueError("`learn` trains a draft model or a head, and `draft_model` is none: give one, or leave it out.")
        if target.config.is_encoder_decoder or is_tested_multimodal(target):
            raise ValueError(f"`learn`: drafts of a {type(target).__name__} learn from texts alone: leave it out.")
        if is_sharded(target) or is_sharded(draft):
            raise ValueError("`learn`: one of the models is sharded over processes: leave it out, or load it whole.")
        if self.draft is not None and self.teacher.target is not target:
            raise ValueError("`learn` is a learner of another model: give each model its own.")
        if self.folder is not None and (self.folder / "config.json").exists():
            try:
                draft = load_model(self.folder, dtype=draft.dtype).to(device_of(draft))
                check_fits(draft, target)
            except (OSError, ValueError) as error:
                raise ValueError(f"`learn={str(self.folder)!r}` holds a draft that is of no use here: {error}") from error
        if any(hasattr(module, "base_layer") for module in draft.modules()):
            raise ValueError("`learn`: `draft_model` has adapters: merge them first, `merge_and_unload()`.")
        weights = list(draft.parameters())
        if getattr(draft, "is_quantized", False) or not all(one.is_floating_point() for one in weights):
            raise ValueError("`learn` trains weights, and those of `draft_model` are quantized: leave it out.")
        if not any(one.requires_grad for one in weights):
            raise ValueError("`learn`: all weights of `draft_model` are frozen: set `requires_grad`, or leave it out.")
        with torch.inference_mode(False):
            own, learning = copy.deepcopy(draft).eval(), copy.deepcopy(draft).float().eval()
            current, student = student_of(own, target), student_of(learning, target)
            teacher = Teacher(target, student.hidden_layers)
        if self.folder is not None:
            files.make_folder("`learn`", self.folder)
        self.draft, self.current, self.student, self.teacher = own, current, student, teacher
        self.generator = current.generator = student.generator = torch.Generator(device_of(target))
        limits = (max_positions_of(target), max_positions_of(own))
        self.max_length = min([MAX_LENGTH, *(limit - 1 for limit in limits if limit is not None)])
        self.texts: deque[tuple[Example, float]] = deque(maxlen=TO_LEARN_FROM)
        self.held_out: deque[Example] = deque(maxlen=TO_JUDGE_BY)
        self.recorded: deque[tuple[int, Recorded]] = deque(maxlen=MOST_RECORDED)
        self.is_held_out = HeldOut()
        self.use = SamplingParams()
        self.balance = self.left_for_idle_time = 0.0
        self.random = random.Random(0)
        self._start_over()
        return own

    def __getstate__(self) -> dict[str, Any]:  # logits are large, and soon recorded again
        return vars(self) | {"recorded": deque[tuple[int, Recorded]](maxlen=MOST_RECORDED)}

    def follow(self, model: PreTrainedModel, drafter: Drafter, inputs: Inputs) -> Drafter:
        """`drafter` in one call of the target `model`, whose texts are learned from.

        Raises:
            ValueError: no draft of this model learns.
        """
        if self.draft is None or self.teacher.target is not model:
            raise ValueError("`learn` begins with `attach(model, draft_model, learn=...)`: give it there.")
        return Followed(drafter, self, inputs)

    def has_room_for(self, prompt: Sequence[int], num_recorded: int) -> bool:
        """Tell whether to record a text that begins with `prompt`, beside others in the same call."""
        num_recorded += sum(self.num_texts - number < FRESH for number, _ in list(self.recorded))
        has_room = num_recorded < MOST_RECORDED and not self.is_frozen
        return has_room and 0 < len(prompt) < self.max_length and not self.is_held_out(prompt)

    def take(self, prompt: Sequence[int], answer: Sequence[int], recorded: Recorded | None = None) -> None:
        """A text is finished: its tokens, of which those of the answer are learned from, and what is known of it."""
        if len(answer) < 2 or not prompt or self.is_frozen or not (weight := self._weight(prompt, answer)):
            return
        answer = answer[: self.max_length - 1]
        example = Example(tuple(prompt[-(self.max_length - len(answer)) :]), tuple(answer))
        self.num_texts += 1
        if self.is_held_out(prompt):
            if example not in list(self.held_out):  # the same text again tells nothing new
                self.held_out.append(example)
        else:
            self.texts.append((example, weight))
            # Each is learned from once, so that its weight decides whether it is.
            if recorded is not None and self.random.random() * max(weight for _, weight in list(self.texts)) <= weight:
                self.recorded.append((self.num_texts, recorded))
        self.left_for_idle_time = min(self.left_for_idle_time + TIMES_WHEN_IDLE / TEXTS, TO_LEARN_FROM)

    def _weight(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        if self.weigh is None:
            return 1.0
        with self._ends_if_it_fails(), torch.no_grad():
            weight = float(self.weigh([*prompt], [*answer]))
            if not 0 <= weight < math.inf:
                raise ValueError(f"`weigh` gave {weight}: give 0 or a positive number")
            return weight
        return 0.0

    def spend(self, seconds: float) -> None:
        """Decoding took so long: learn for a share of it."""
        share = self.share if self.num_taken_over else AT_FIRST * self.share
        self.balance = min(self.balance + share * seconds, MOST_SAVED)
        if self.balance > 0:
            self.balance -= self._work()

    def has_more_to_learn(self) -> bool:
        """Whether there are texts that were seldom learned from."""
        return self.left_for_idle_time >= 1 and self._is_ready()

    def use_idle_time(self) -> None:
        """Nothing is decoded: do one piece of work."""
        self.left_for_idle_time -= 1
        self._work()

    def _is_ready(self) -> bool:
        return not self.is_frozen and len(self.texts) >= ENOUGH

    def _work(self) -> float:
        """Do a piece of work, and return its seconds."""
        if not self._is_ready() or not _learning.acquire(blocking=False):
            return 0.0
        started = time.perf_counter()
        try:
            with self._ends_if_it_fails():
                self._go_on()
        finally:
            _learning.release()
        took = time.perf_counter() - started
        self.seconds += took
        return took

    @contextmanager
    def _ends_if_it_fails(self) -> Iterator[None]:
        """What fails ends learning, not the call. Whatever the caller has set of torch, gradients are made."""
        try:
            device = device_of(self.teacher.target).type
            with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
                yield
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End learning, not the call."""
        self.is_frozen = True
        self.recorded.clear()
        warnings.warn(f"the draft learns no more, and is used as it is: {type(error).__name__}: {error}", stacklevel=4)

    def _go_on(self) -> None:
        """One piece of work: a step, or judging by one text."""
        if self.num_steps < self.next_judgement or len(self.held_out) < ENOUGH:
            self._step()
        elif len(self.gains) < len(self.held_out) and not self._is_clear(AT_ONCE):
            self.gains.append(self._gain(self.held_out[len(self.gains)]))
        else:
            self._judge()

    def _step(self) -> None:
        if len(self.recorded) >= TEXTS:
            lesson = lesson_of([self.recorded.popleft()[1] for _ in range(TEXTS)], device_of(self.teacher.target))
        else:
            # Drawn without replacement, by weight (Efraimidis and Spirakis 2006, algorithm A, in logarithms).
            drawn = heapq.nlargest(TEXTS, list(self.texts), key=lambda text: math.log(1 - self.random.random()) / text[1])
            lesson = self._lesson([example for example, _ in drawn])
        outputs = self.student.module(**self.student.inputs(lesson))
        loss = Objective(self.student, LOSSES["lk_hybrid"], self.use)(outputs, lesson) / lesson.counted.sum()
        try:
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.weights, 0.5)
            if torch.isfinite(norm):
                self.optimizer.step()
        finally:  # an interrupted step leaves nothing to the next one
            self.optimizer.zero_grad()
        self.num_steps += 1

    def _judge(self) -> None:
        """Which of the two is accepted more often, in texts that neither has learned from."""
        if self._is_clear(CLEARLY):
            self._take_over() if statistics.mean(self.gains) > 0 else self._start_over()
        self._set_next_judgement()

    def _is_clear(self, num_errors: float) -> bool:
        """Whether one of the two is better by so many standard errors."""
        num = len(self.gains)
        return num >= ENOUGH and abs(statistics.mean(self.gains)) > num_errors * statistics.stdev(self.gains) / num**0.5

    def _take_over(self) -> None:
        self.current.module.load_state_dict(self.student.module.state_dict())
        self.num_taken_over += 1
        if self.folder is not None:
            with tempfile.TemporaryDirectory(dir=self.folder) as written:
                self.current.save(Path(written), None)  # the target's tokenizer is the draft's
                for path in Path(written).iterdir():
                    path.replace(self.folder / path.name)

    def _start_over(self) -> None:
        self.student.module.load_state_dict(self.current.module.state_dict())
        self.weights = [weight for weight in self.student.module.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, self.learning_rate, betas=(0.9, 0.95))
        self._set_next_judgement()

    def _set_next_judgement(self) -> None:
        self.gains = list[float]()
        self.next_judgement = self.num_steps + min(MOST_STEPS, max(FEWEST_STEPS, self.num_steps // 2))

    @torch.no_grad()
    def _gain(self, text: Example) -> float:
        lesson = self._lesson([text])
        return self._accepted(self.student, lesson) - self._accepted(self.current, lesson)

    def _accepted(self, student: Student, lesson: TeacherOutputs) -> float:
        """The share of guesses that are accepted, as the last call draws its tokens."""
        self.generator.manual_seed(0)  # blocks at the same places
        outputs = student.module(**student.inputs(lesson))
        measure = acceptance if self.use.temperature else agreement
        return float(Objective(student, measure, self.use)(outputs, lesson)) / int(lesson.counted.sum())

    def _lesson(self, examples: Sequence[Example]) -> TeacherOutputs:
        batch = collated(examples)
        device = device_of(self.teacher.target)
        return self.teacher(**{name: tensor.to(device) for name, tensor in batch.items()})


@contextmanager
def frozen(learner: Learner | None) -> Iterator[None]:
    """Nothing is learned within, such as where ways to decode are compared."""
    if learner is None:
        yield
        return
    before, learner.is_frozen = learner.is_frozen, True
    try:
        yield
    finally:
        learner.is_frozen = before
