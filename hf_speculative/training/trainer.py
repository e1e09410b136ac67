"""A `transformers.Trainer` whose loss is between the target and the draft, and whose evaluation is the real loop.

Also what a run chooses of `TrainingArguments`, and where it goes on after a stop.
"""

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerState

from ..distillation.objective import LOSSES, Objective
from ..distillation.sampling_params import SamplingParams
from ..distillation.teacher import Student, Teacher
from ..hf_compat.training import LengthGroupedSampler
from ..reports.timing import timed
from .acceptance import Meter
from .settings import Settings

#: how often the loss is logged in a run
LOGS = 50
#: the share of steps with a rising learning rate
WARMUP = 0.05
#: steps that are timed, after one that is not, and their share of a run's time
TIMED_STEPS, TIMING = 3, 0.05


def texts_of_a_pass(settings: Settings, count: int) -> int:
    """How many texts go through the draft at once, in each of `count` processes.

    Raises:
        ValueError: a step cannot be split like this.
    """
    num_passes = settings.accumulate * count
    if settings.batch_size % num_passes:
        of_processes = f" of {count} processes" if count > 1 else ""
        passes = f"{num_passes} equal passes{of_processes}"
        raise ValueError(f"`batch_size={settings.batch_size}` cannot be split into {passes}: give a multiple.")
    return settings.batch_size // num_passes


def defaults(settings: Settings, folder: Path, num_steps: int, every: int, device: str, count: int) -> dict[str, Any]:
    """Arguments of a run in `count` processes that measures acceptance and keeps a checkpoint each `every` steps."""
    return {
        "output_dir": str(folder),
        "max_steps": num_steps,
        "per_device_train_batch_size": texts_of_a_pass(settings, count),
        "gradient_accumulation_steps": settings.accumulate,
        "learning_rate": settings.rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": max(1, int(WARMUP * num_steps)),
        "adam_beta2": 0.95,
        "max_grad_norm": 0.5,
        "seed": settings.seed,
        "logging_steps": max(1, num_steps // LOGS),
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_steps": every,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_acceptance_length",
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device == "cuda",
    }


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; a full disk or a kill may have left a part of a later one."""
    for path in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text())  # written last
        except (OSError, ValueError):
            continue
        return path
    return None


def step_of(checkpoint: Path | str) -> int:
    return int(str(checkpoint).rpartition("-")[2])


class AlikeInLength(LengthGroupedSampler):
    """Puts texts of about one length into a batch, so that little of it is padding; a run that goes on takes the same ones."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(self.seed + epoch)


class DraftTrainer(Trainer):
    """Trains a `Student` on what a `Teacher` says about the texts of a data set.

    Its arguments, callbacks, mixed precision, gradient accumulation, checkpoints and several processes are transformers' own.
    Losses are summed over tokens and divided by their number in the whole step, so that a step is the same however it is split.

    Args:
        student: what is trained, on the device of the `TrainingArguments`.
        teacher: moved there too.
        loss: a name in `LOSSES`.
        use: how the target will be sampled from.
        meter: measures acceptance in `evaluate`.
        **kwargs: as for `Trainer`.

    Raises:
        ValueError: in a step whose loss is NaN or infinite. Its batch is kept beside the checkpoints.
    """

    def __init__(self, student: Student, teacher: Teacher, loss: str, use: SamplingParams, meter: Meter, **kwargs):
        super().__init__(model=student.module, eval_dataset=meter.prompts, **kwargs)
        self.student, self.teacher, self.meter = student, teacher, meter
        self.objective = Objective(student, LOSSES[loss], use)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the tokens of the whole step
        if getattr(teacher.target, "hf_device_map", None) is None:  # else it is spread over devices already
            teacher.target.to(self.args.device)

    def _get_train_sampler(self, train_dataset=None) -> AlikeInLength:
        examples = self.train_dataset if train_dataset is None else train_dataset
        num_texts = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return AlikeInLength(num_texts, [example.num_tokens for example in examples], self.args.seed)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        lesson = self.teacher(**inputs)
        outputs = model(**self.student.inputs(lesson))
        num_tokens = lesson.counted.sum() if num_items_in_batch is None else num_items_in_batch
        loss = self.objective(outputs, lesson) / num_tokens
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # gradients of processes are averaged
        if not torch.isfinite(loss):
            self._stop(inputs, loss)
        return (loss, outputs) if return_outputs else loss

    def step_seconds(self, run_seconds: float = math.inf) -> float:
        """Time an optimizer step on the first texts; weights and random numbers stay as they are.

        Args:
            run_seconds: of the whole run, of which timing takes a small share: one step, if that is long.
        """
        args, device, module = self.args, self.args.device, self.model
        inputs = self._prepare_inputs(self.data_collator(list(self.train_dataset)[: args.per_device_train_batch_size]))
        was_training = module.training
        module.train()

        def step():
            with self.compute_loss_context_manager():
                loss = self.compute_loss(module, dict(inputs))
            loss.backward()
            module.zero_grad()

        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            seconds = [timed(step, device)[1]]
            while len(seconds) <= TIMED_STEPS and sum(seconds) < TIMING * run_seconds:
                seconds.append(timed(step, device)[1])
        module.train(was_training)
        return statistics.median(seconds[1:] or seconds) * args.gradient_accumulation_steps  # the first one is slower

    def _stop(self, inputs: dict[str, Any], loss: Tensor) -> None:
        step = self.state.global_step
        kept = Path(self.args.output_dir) / f"not-finite-step-{step}.pt"
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: tensor.cpu() for name, tensor in inputs.items()}, kept)
        found = f"the loss is {loss.item()} in step {step + 1}; its batch is in {kept}. The checkpoints before are whole"
        raise ValueError(f"{found}. Try a lower learning rate, or bfloat16 instead of float16.")

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Acceptance on held-out prompts, by the real loop."""
        started = time.monotonic()
        metrics = self.meter(self.teacher.target, self.student.draft())
        metrics["eval_seconds"] = time.monotonic() - started
        self.log(metrics)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def take_best(self, checkpoint: Path) -> None:
        """The state of a run that ended at `checkpoint`, and its best weights, without another step."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        best = checkpoint.parent / Path(self.state.best_model_checkpoint or checkpoint).name  # the folder may have moved
        self.state.best_model_checkpoint = str(best if best.is_dir() else checkpoint)
        self._load_from_checkpoint(self.state.best_model_checkpoint)
