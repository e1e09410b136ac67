"""One run of training: answers, a student, steps, the draft that is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainingArguments

from ..call import checks
from ..evaluation.fingerprint import fingerprint
from ..evaluation.processes import Processes
from ..models import num_parameters
from ..reports import files
from ..reports.environment import environment
from ..tokenizers.loading import tokenizer_of
from . import card, page, students
from .acceptance import Meter
from .answers import Asked, answers_of_all
from .arguments import as_os_error, defaults, last_checkpoint, step_of, steps_of, texts_of_a_pass
from .estimate import Estimate, estimate
from .examples import Collator, Example, unique
from .on_policy import OnPolicy
from .packing import keeps_texts_apart
from .progress import Clock, Shown
from .prompts import Data, read_data
from .prospects import prospects
from .push import Push
from .results import FILE, Trained, name_of
from .settings import Settings
from .store import StoredTeacher
from .student import Student
from .teacher import Teacher
from .trainer import DraftTrainer

ANSWERS, CHECKPOINTS = "answers.jsonl", "checkpoints"


@dataclass
class Watch:
    """What a caller is told while a run goes on.

    Attributes:
        answers: `(done, total)`, the target's answers.
        say: a sentence.
        shows_progress: a bar of the steps.
    """

    answers: Callable[[int, int], None] = lambda done, total: None
    say: Callable[[str], None] = lambda sentence: None
    shows_progress: bool = False


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
    push: Push | None = None,
    store: str | Path | None = None,
    **arguments,
) -> Trained:
    """Train a draft for `target` on its own answers to the prompts of a data set.

    The folder `output` then is what `draft_model=` takes. Beside the draft it holds its card, the report, the answers, the
    checkpoints and `training.json`. The target stays as it is.

    Args:
        dataset: prompts, as in `hf_speculative.evaluate`.
        resume: go on with a run in `output` that was stopped, from its last checkpoint; answers are continued in any case.
        reading: how prompts are read, keywords of `training.prompts.read_data`.
        push: upload the draft at the end.
        store: a folder for what the target makes of each text, which then is computed once and not in every epoch.
        **arguments: of transformers' `TrainingArguments`, which come before what is chosen here.

    Raises:
        ValueError, TypeError: before the first forward.
    """
    run = Run(target, output, settings, tokenizer, watch or Watch(), push, store)
    run.begin(resume)
    run.read(dataset, reading or {})
    run.answer()
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
    push: Push | None = None
    store: str | Path | None = None
    examples: list[Example] = field(default_factory=list)

    def __post_init__(self):
        self.target = checks.unwrap(self.target, "target")
        checks.check_model(self.target, "target")
        self.folder = Path(self.output)
        self.tokenizer = self.tokenizer or tokenizer_of(self.target)

    def begin(self, resume: bool) -> None:
        """Refuses what cannot work, before anything is computed."""
        files.check_folder("`output`", self.folder)
        path = self.folder / FILE
        if path.exists() and not resume:
            raise ValueError(
                f"`output={str(self.folder)!r}` holds a run already: go on with `resume=True`, or name another folder."
            )
        if resume and path.exists():
            Trained.read(self.folder).check(self.settings.to_dict())
        self.processes = Processes.of(self.target)
        if self.processes.shares_model:
            raise ValueError(
                "the target is sharded over processes, each of which trains on texts of its own: load it whole."
            )
        texts_of_a_pass(self.settings, self.processes.count)
        students.check(self.settings, self.target, self.tokenizer)
        if self.store is not None and self.settings.on_policy:
            raise ValueError(
                f"`store={str(self.store)!r}` holds what the target makes of its own answers, and `on_policy` makes others in "
                "each step: leave one of them out."
            )
        if self.push is not None:
            self.push.check()
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, dataset: Any, reading: dict[str, Any]) -> None:
        """The prompts."""
        self.source = str(dataset) if isinstance(dataset, (str, Path)) else type(dataset).__name__
        self.data: Data = read_data(
            dataset,
            self.target,
            self.tokenizer,
            held_out=self.settings.held_out,
            max_new_tokens=self.settings.max_new_tokens,
            **reading,
        )
        for row in self.data.bad_rows[:3]:
            self.watch.say(f"Row {row.index} is left out: {row.message}.")
        if (more := len(self.data.bad_rows) - 3) > 0:
            self.watch.say(f"{more} more rows are left out.")

    def answer(self, only: int | None = None) -> None:
        """The target's answers, those of a run before included.

        Args:
            only: to the first so many prompts, for an estimate.
        """
        settings = self.settings
        if self.data.answers:
            self.examples = unique(self.data.examples(), settings.max_length)
            self.processes.gather([])  # none begins before all have looked into the folder
            return
        name = f"{name_of(self.target)} {fingerprint(self.target)}"
        asked = Asked(
            name, self.data.digest, settings.use, settings.max_new_tokens, settings.answers_per_prompt, settings.seed
        )
        prompts = dict(list(self.data.prompts.items())[:only])
        path, watch = self.folder / ANSWERS, self.watch.answers
        found = answers_of_all(self.target, prompts, asked, path, settings.batch_size, watch, self.processes)
        self.examples = unique(found, settings.max_length)

    def prepare(self, arguments: dict[str, Any], records: bool = True) -> Estimate:
        """Student, store and trainer, and what a step costs.

        Args:
            records: what the store lacks; without, it is left as it is, for an estimate.
        """
        self.arguments = arguments
        self.student: Student = students.new_student(self.settings, self.target, self.examples)
        packs = self.settings.pack and keeps_texts_apart(self.target) and self.student.packs
        if self.settings.pack and not packs:
            self.watch.say("Each text gets a row of its own: the model does not keep texts apart that share one.")
        self.collator = Collator(self.tokenizer.pad_token_id or 0, packs)
        self.teacher = Teacher(self.target, self.student.hidden_layers)
        if self.store is not None:
            self.stored = StoredTeacher(self.teacher, Path(self.store), self.examples)
            self.teacher = self._recorded() if records else self.teacher
        trainer = self._trainer(1, 1)
        self.estimate = self.processes.gather([estimate(trainer)])[0]
        return self.estimate

    def _recorded(self) -> Teacher:
        rank, count = self.processes.rank, self.processes.count
        self.watch.say(f"The store takes {self.stored.num_bytes / 1e9:,.1f} GB.")
        missing = self.stored.begin() if rank == 0 else []
        missing = self.processes.gather([missing])[0]
        self.stored.record(missing[rank::count], self.collator, self.settings.batch_size)
        self.processes.gather([])  # all have recorded theirs
        return self.stored

    def train(self, resume: bool) -> Trained:
        """The steps, and what is kept of them."""
        checkpoint = last_checkpoint(self.folder / CHECKPOINTS) if resume else None
        found, result = self.folder / FILE, self._result()
        if resume and found.exists():
            result.num_steps = Trained.read(self.folder).num_steps
        for note in result.notes:
            self.watch.say(note)
        every = result.num_steps // min(result.num_steps, self.settings.num_evaluations)
        trainer = self._trainer(result.num_steps, every, is_new=checkpoint is None)
        clock = Clock()
        trainer.add_callback(clock)
        trainer.add_callback(Shown(self.watch.shows_progress))
        if trainer.is_world_process_zero():
            result.write()
        if resume:
            self.watch.say(
                "There is no checkpoint yet: this begins with the first step."
                if checkpoint is None
                else f"Going on after step {step_of(checkpoint)}."
            )
        with files.named(self.folder, "the checkpoints before are whole: make room, then resume"), as_os_error():
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        result.follow(trainer.state.log_history)
        best = trainer.state.best_model_checkpoint
        result.best_step = step_of(best) if best else trainer.state.global_step
        result.seconds = clock.seconds
        if trainer.is_world_process_zero():
            self.student.save(self.folder, self.tokenizer)
            result.write()
            card.write(result)
            page.write(result, self.folder / "report.html")
            if self.push is not None:
                self.push(self.folder)
        return result

    def _trainer(self, num_steps: int, every: int, is_new: bool = True) -> DraftTrainer:
        settings, collator = self.settings, self.collator
        chosen = defaults(
            settings, self.folder / CHECKPOINTS, num_steps, every, self.target.device.type, self.processes.count
        )
        trainer = DraftTrainer(
            self.student,
            self.teacher,
            settings.loss,
            settings.use,
            self._meter(),
            OnPolicy(settings.on_policy, settings.use, collator) if settings.on_policy else None,
            args=TrainingArguments(**chosen | {"eval_on_start": is_new} | self.arguments),
            train_dataset=self.examples,
            data_collator=collator,
        )
        trainer.remove_callback(PrinterCallback)  # `Shown` tells
        return trainer

    def _meter(self) -> Meter:
        settings = self.settings
        return Meter(
            self.data.held_out,
            settings.use,
            min(settings.draft_tokens, self.student.max_draft_tokens or settings.draft_tokens),
            max_new_tokens=min(64, settings.max_new_tokens),
            batch_size=settings.batch_size,
            seed=settings.seed,
        )

    def notes(self, num_answers: int, num_steps: int) -> list[str]:
        """What a run of this size has to expect."""
        num_seen = num_steps * self.settings.batch_size
        return prospects(self.settings.kind, num_answers, num_seen, num_parameters(self.target))

    def _result(self) -> Trained:
        num_steps = steps_of(self.settings, self.estimate)
        return Trained(
            folder=self.folder,
            target=name_of(self.target),
            kind=self.student.kind,
            settings=self.settings.to_dict(),
            data={
                "source": self.source,
                "num_prompts": len(self.data.prompts),
                "num_held_out": len(self.data.held_out),
                "num_answers": len(self.examples),
                "num_tokens": sum(len(example.new_ids) for example in self.examples),
                "num_repeated": self.data.num_repeated,
                "num_bad_rows": len(self.data.bad_rows),
                "are_generated": not self.data.answers,
            },
            environment=environment(self.target),
            num_parameters=num_parameters(self.student.draft()),
            num_steps=num_steps,
            repository=None if self.push is None else self.push.repository,
            notes=self.notes(len(self.examples), num_steps),
        )
