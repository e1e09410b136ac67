"""One run of training: answers, a student, steps, the draft that is kept."""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainingArguments

from ..call import checks
from ..call.attached import own_generate
from ..distillation.teacher import Example, Student, Teacher, collated, unique
from ..drafting.tables import TablesSource
from ..generation import attach, detach
from ..hf_compat.training import keep_to_one_device
from ..measuring.inputs import Prompts
from ..measuring.plan import Processes, files_of_ranks, fingerprint
from ..models import max_positions_of, num_parameters
from ..models.described import digest
from ..reports import files
from ..reports.environment import environment
from ..reports.formats import plural
from ..reports.timing import timed
from ..tokenizers.chat import chat_keywords, speaks_chat
from ..tokenizers.loading import tokenizer_of
from . import students, wording
from .acceptance import Meter
from .answers import PROMPTS, answer, header_of, read_answers, write_prompts
from .deadline import ANSWERING, MEASUREMENT, PROMPTING, Deadline, Pace, Watch, seconds_of
from .prompts import Data, read_data
from .results import FILE, Point, Trained, name_of, point_of
from .settings import TABLES, Settings
from .store import StoredTeacher
from .trainer import DraftTrainer, defaults, last_checkpoint, step_of, texts_of_a_pass
from .warm_tables import learn_tables

ANSWERS, CHECKPOINTS = "answers.jsonl", "checkpoints"
#: the number of answers below which heads of published runs showed no gain on held-out prompts
FEW_ANSWERS = 100


def train(
    target: PreTrainedModel,
    dataset: Any,
    output: str | Path,
    settings: Settings,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    reading: dict[str, Any] | None = None,
    store: str | Path | None = None,
    **arguments,
) -> Trained:
    """Train a draft for `target` on its own answers to the prompts of a data set.

    The folder `output` then is what `draft_model=` takes. Beside the draft it holds its card, the answers, the
    checkpoints and `training.json`. The target stays as it is.

    Args:
        dataset: prompts, as in `hf_speculative.evaluate`; `None`: the target writes its own, `settings.num_prompts` of them.
        resume: go on with a run in `output` that was stopped, from its last checkpoint; answers are continued in any case.
        reading: how prompts are read, keywords of `training.prompts.read_data`.
        store: a folder for what the target makes of each text, which then is computed once and not in every epoch.
        **arguments: of transformers' `TrainingArguments`, which come before what is chosen here.

    Raises:
        ValueError, TypeError: before the first forward.
    """
    if students.is_head(settings) and arguments.get("gradient_checkpointing"):
        why = "the steps of a head share keys and values"
        raise ValueError(f"`gradient_checkpointing`: {why}: set `accumulate` to save memory.")
    run = Run(target, output, settings, tokenizer, watch or Watch(), store)
    run.begin(resume)
    run.read(dataset, reading or {})
    run.answer()
    if settings.kind == TABLES:
        return run.tables()
    run.prepare(arguments)
    return run.train(resume)


@dataclass
class Run:
    """The stages of a run, in their order."""

    target: PreTrainedModel
    output: str | Path
    settings: Settings
    tokenizer: Any
    watch: Watch
    store: str | Path | None = None
    most_draft_tokens: int | None = None
    untrained: Point | None = None

    def __post_init__(self):
        self.deadline = Deadline(60 * (self.settings.minutes or math.inf))
        self.target = checks.unwrap(self.target, "target")
        checks.check_model(self.target, "target")
        self.folder = Path(self.output)
        self.tokenizer = self.tokenizer or tokenizer_of(self.target)

    def begin(self, resume: bool) -> None:
        """Refuses what cannot work, before anything is computed."""
        path, shown = self.folder / FILE, f"`output={str(self.folder)!r}`"
        files.check_output("`output`:", path, makes_folders=True)
        if path.exists() and not resume:
            raise ValueError(f"{shown} holds a run already: go on with `resume=True`, or name another folder.")
        made = {one.name for one in self.folder.iterdir()} if self.folder.is_dir() else None
        if resume and (made is None or (made and made.isdisjoint((FILE, ANSWERS, PROMPTS, CHECKPOINTS)))):
            raise ValueError(f"{shown} holds no run to go on with: name its folder, or begin one without `resume`.")
        self.before = Trained.read(self.folder) if path.exists() else None
        if self.before is not None:
            self.before.check(self.settings.to_dict())
        self.processes = Processes.of(self.target)
        if self.processes.shares_model:
            raise ValueError("the target is sharded over processes, which train on texts of their own: load it whole.")
        texts_of_a_pass(self.settings, self.processes.count)
        students.check(self.settings, self.target, self.tokenizer)
        files.make_folder(shown, self.folder)

    def read(self, dataset: Any, reading: dict[str, Any]) -> None:
        """The prompts; without a data set, those that the target writes itself."""
        settings = self.settings
        if dataset is None:
            self.watch.part("prompts of the target")
            is_over = functools.partial(self.deadline.has_passed, PROMPTING)
            dataset, reading = self.folder / PROMPTS, {}
            # More prompts would be others than those that were answered.
            if self.processes.rank == 0 and not (self.folder / ANSWERS).exists():
                with self._decodes_fast():
                    write_prompts(self.target, self.tokenizer, dataset, settings, self.watch.count, is_over)
            self.processes.gather([])  # the others read what the first has written
        self.watch.part("reading the prompts")
        self.source = str(dataset) if isinstance(dataset, (str, Path)) else type(dataset).__name__
        is_raw = bool(reading.get("raw"))
        self.is_chat = speaks_chat(self.tokenizer) and not is_raw
        self.ends = chat_keywords(self.target, self.tokenizer, is_raw)
        reading = reading | {"held_out": settings.held_out, "max_new_tokens": settings.max_new_tokens}
        self.data: Data = read_data(dataset, self.target, self.tokenizer, **reading)
        limit = max_positions_of(self.target)
        self.max_length = settings.max_length if limit is None else min(limit, settings.max_length)
        num_full = sum(len(ids) >= self.max_length for ids in self.data.prompts.values())
        if num_full == len(self.data.prompts):
            way_out = "give more" if limit is None or settings.max_length < limit else "the target has no more positions"
            raise ValueError(f"`max_length={self.max_length}` leaves no prompt room for an answer: {way_out}.")
        if num_full:
            self.watch.say(f"{plural(num_full, 'prompt')} of `max_length` or more: no answer to learn from.")
        for row in self.data.bad_rows[:3]:
            self.watch.say(f"Row {row.index} is left out: {row.message}.")
        if (more := len(self.data.bad_rows) - 3) > 0:
            self.watch.say(f"{more} more rows are left out.")

    def answer(self) -> None:
        """The target's answers, those of a run before included."""
        settings = self.settings
        if self.data.answers:
            self.examples = unique(self.data.examples(), self.max_length)
            self.processes.gather([])  # none begins before all have looked into the folder
            self._check_texts()
            return
        self.watch.part("answers of the target")
        rank, count, prompts = self.processes.rank, self.processes.count, self.data.prompts
        name = f"{name_of(self.target)} {fingerprint(self.target)}"
        header = header_of(name, Prompts(prompts).digest, settings)
        path = self.folder / (f"{ANSWERS}.rank{rank}" if rank else ANSWERS)
        watch, share, others = self.watch.count, (rank, count), self._journals()

        def is_over() -> bool:
            return self.before is not None or self.deadline.has_passed(ANSWERING)

        with self._decodes_fast():
            answer(self.target, prompts, settings, path, header, watch, share, others, is_over, keywords=self.ends)
        self.processes.gather([])  # all have written theirs
        found = {key: ids for path in self._journals() for key, ids in read_answers(path, header).items()}
        examples = [Example(tuple(prompts[index]), ids) for (index, _), ids in sorted(found.items())]
        self.examples = unique(examples, self.max_length)
        self._check_texts()

    def _check_texts(self) -> None:
        """A run goes on with the target and the texts that it was begun with."""
        texts = self.data.held_out, [(one.prompt_ids, one.new_ids) for one in self.examples]
        self.about = {"target": fingerprint(self.target), "texts": digest(texts)}
        for name, value in self.about.items():
            if self.before is not None and self.before.data.get(name, value) != value:
                held = "a run on other texts" if name == "texts" else "a run of another target, or of this one in another dtype"
                raise ValueError(f"`output={str(self.folder)!r}` holds {held}: name another folder.")

    def _journals(self) -> list[Path]:
        """Of answers, by all processes, also those of a run before, which may have had more."""
        return [*files_of_ranks(self.folder / ANSWERS), self.folder / ANSWERS]

    @contextmanager
    def _decodes_fast(self) -> Iterator[None]:
        """The target on its fastest passes, which round otherwise: not where `steps` promises the same answers again."""
        with ExitStack() as stack:
            if self.settings.steps is None and own_generate(self.target) is None:
                attach(self.target, "auto")
                stack.callback(detach, self.target)
            yield

    def prepare(self, arguments: dict[str, Any]) -> None:
        """Student, store and trainer, and what a step costs."""
        self.arguments = arguments
        self.student: Student = students.new_student(self.settings, self.target, self.examples)
        if (limit := max_positions_of(self.student.draft())) is not None:
            fitting = unique(self.examples, limit)
            if not fitting:
                raise ValueError(
                    f"the draft has {limit} positions, which leave no prompt room for an answer: give another `head`."
                )
            if fitting != self.examples:
                self.watch.say(f"Answers are cut to the {limit} positions of the draft: {plural(len(fitting), 'answer')} left.")
            self.examples = fitting
        self.num_parameters, self.kind = num_parameters(self.student.draft()), self.student.kind
        self.most_draft_tokens = self.student.max_draft_tokens
        if self.store is None:
            self.teacher: Teacher = Teacher(self.target, self.student.hidden_layers)
        else:
            self.teacher = teacher = StoredTeacher(self.target, self.student.hidden_layers, Path(self.store))
            self._record(teacher)
        if self.before is not None:
            self.untrained = self.before.untrained
        else:
            self.watch.part("measuring a draft without training")
            self.untrained = point_of(0, self._meter()(self.target, "auto", only_use=True))
        trainer = self._trainer(1, 1)
        self.watch.part("timing a step")
        self.step_seconds = self.processes.gather([trainer.step_seconds(self.deadline.seconds)])[0]

    def _record(self, teacher: StoredTeacher) -> None:
        """Each process its share of the texts."""
        self.watch.part("recording the target")
        size, (rank, count) = self.settings.batch_size, (self.processes.rank, self.processes.count)
        examples = sorted(self.examples, key=lambda example: example.num_tokens)  # little of a batch is padding
        for first in range(rank * size, len(examples), count * size):
            batch = collated(examples[first : first + size])
            teacher.record(**{name: tensor.to(self.target.device) for name, tensor in batch.items()})
            self.watch.count(first, len(self.examples))
        self.processes.gather([])

    def train(self, resume: bool) -> Trained:
        """The steps, and what is kept of them."""
        checkpoint = last_checkpoint(self.folder / CHECKPOINTS) if resume else None
        num_done = 0 if checkpoint is None else step_of(checkpoint)
        result = self._result(self._num_steps(num_done))
        if self.before is not None and self.before.best_step is not None and num_done >= result.num_steps:
            self.watch.say(f"This run has made its {plural(num_done, 'step')}: give more `steps`, or another folder.")
            return self.before
        if self.settings.kind != "draft" and len(self.examples) < FEW_ANSWERS:
            way_out = "give more `minutes`, prompts or `answers_per_prompt`, or take `head='tables'`, which learns from few"
            self.watch.say(f"{len(self.examples)} answers are too few for a draft that begins anew: {way_out}.")
        every = max(1, (result.num_steps - num_done) // self.settings.num_evaluations)
        trainer = self._trainer(result.num_steps, every, is_new=checkpoint is None)
        size = f"{self.num_parameters / 1e6:.1f} million parameters"
        self.watch.say(f"{size} learn from {plural(len(self.examples), 'answer')}.")
        self.watch.part("training")
        pace = Pace(self.deadline, self.step_seconds, self.watch, self.processes)
        trainer.add_callback(pace)
        if self.processes.rank == 0:
            result.write()
        if resume:
            self.watch.say("There is no checkpoint yet." if checkpoint is None else f"Going on after step {num_done}.")
        with files.named(self.folder, "the checkpoints before are whole: make room, then resume"):
            if checkpoint is not None and num_done >= result.num_steps:  # killed after its last checkpoint
                trainer.take_best(checkpoint)
            else:
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if pace.is_early:
            made = plural(trainer.state.global_step, "step")
            self.watch.say(f"The time was over after {made} of {result.num_steps:,}; `resume=True` goes on.")
        result.follow(trainer.state.log_history)
        best = trainer.state.best_model_checkpoint
        result.best_step = step_of(best) if best else trainer.state.global_step
        result.seconds = seconds_of(trainer.state.log_history)
        result.num_steps = max(num_done, trainer.state.global_step)
        return self._kept(result, functools.partial(self.student.save, self.folder, self.tokenizer))

    def tables(self) -> Trained:
        """Warm tables in place of a trained model: they are learned in one reading of the answers."""
        meter, self.num_parameters, self.kind = self._meter(), 0, "warm tables"
        result = self._result(num_steps=1)
        self.watch.part("reading the answers")
        learn = functools.partial(learn_tables, self.target, self.tokenizer, self.examples, self.watch.count)
        tables, result.seconds = timed(learn, self.target.device)
        self.watch.part("measuring acceptance")
        drafts = ("auto", TablesSource(tables))
        result.follow([{"step": step} | meter(self.target, draft) for step, draft in enumerate(drafts)])
        result.best_step = 1
        return self._kept(result, functools.partial(tables.save, self.folder))

    def _kept(self, result: Trained, save: Callable[[], None]) -> Trained:
        """The first process writes the draft, its figures and its card."""
        if self.processes.rank == 0:
            save()
            result.write()
            wording.write(result)
        return result

    def _trainer(self, num_steps: int, every: int, is_new: bool = True) -> DraftTrainer:
        settings, device, count = self.settings, self.target.device.type, self.processes.count
        chosen = defaults(settings, self.folder / CHECKPOINTS, num_steps, every, device, count)
        args = TrainingArguments(**chosen | {"eval_on_start": is_new} | self.arguments)
        keep_to_one_device(args)
        parts = self.student, self.teacher, settings.loss, settings.use, self._meter()
        trainer = DraftTrainer(*parts, args=args, train_dataset=self.examples, data_collator=collated)
        trainer.remove_callback(PrinterCallback)  # a bar, if anything, shows how it goes
        return trainer

    def _meter(self) -> Meter:
        settings, most_seconds = self.settings, MEASUREMENT * self.deadline.seconds
        num_tokens = min(settings.draft_tokens, self.most_draft_tokens or settings.draft_tokens)
        return Meter(self.data.held_out, settings, num_tokens, most_seconds, processes=self.processes, ends=self.ends)

    def _num_steps(self, num_done: int) -> int:
        """Of the whole run, `num_done` of an earlier command included."""
        if self.settings.steps is not None:
            return self.settings.steps
        if self.before is not None and self.before.best_step is None:  # killed, and begun with a plan
            return self.before.num_steps
        return self.processes.gather([num_done + self.deadline.num_steps(self.step_seconds)])[0]  # each has a clock

    def _result(self, num_steps: int) -> Trained:
        data = {
            "source": self.source,
            "num_prompts": len(self.data.prompts),
            "num_held_out": len(self.data.held_out),
            "num_answers": len(self.examples),
            "num_tokens": sum(len(example.new_ids) for example in self.examples),
            "num_repeated": self.data.num_repeated,
            "num_bad_rows": len(self.data.bad_rows),
            "are_generated": not self.data.answers,
            "is_chat": self.is_chat,
        } | self.about
        about = self.folder, name_of(self.target), self.kind, self.settings.to_dict(), data, environment(self.target)
        return Trained(*about, num_parameters=self.num_parameters, num_steps=num_steps, untrained=self.untrained)
