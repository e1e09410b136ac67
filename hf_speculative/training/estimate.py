"""How long a run takes and how much memory, from one step of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from ..reports.timing import timed
from .trainer import DraftTrainer

#: steps that are timed, after one that is not
REPEATS = 3
#: of each number that is trained: itself, its gradient, two moments of Adam
COPIES = 4
#: of a run's time
SHARE = 0.05


@dataclass(frozen=True)
class Estimate:
    """Of one optimizer step.

    Attributes:
        seconds: the median of some forward and backward passes.
        gigabytes: of weights, gradients and moments, and of the logits of a batch; measured on an accelerator.
    """

    seconds: float
    gigabytes: float


def estimate(trainer: DraftTrainer, run_seconds: float | None = None) -> Estimate:
    """Time a step on the first texts; weights and random numbers stay as they are.

    Args:
        run_seconds: of the whole run, of which timing takes a small share: one step, if that is long.
    """
    args, device = trainer.args, trainer.args.device
    examples = list(trainer.train_dataset)[: args.per_device_train_batch_size]
    inputs = trainer._prepare_inputs(trainer.data_collator(examples))
    module = trainer.model
    was_training = module.training
    module.train()

    def step():
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(module, dict(inputs))
        loss.backward()
        module.zero_grad()

    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    with torch.random.fork_rng([device] if is_cuda else []):
        seconds = [timed(step, device)[1]]
        while len(seconds) <= REPEATS and (run_seconds is None or sum(seconds) < SHARE * run_seconds):
            seconds.append(timed(step, device)[1])
        seconds = seconds[1:] or seconds  # the first one is slower
        num_bytes = torch.cuda.max_memory_allocated(device) if is_cuda else _counted(trainer, inputs)
    module.train(was_training)
    if is_cuda:
        weights = (weight for weight in module.parameters() if weight.requires_grad)
        num_bytes += sum(2 * weight.numel() * weight.element_size() for weight in weights)
    return Estimate(statistics.median(seconds) * args.gradient_accumulation_steps, num_bytes / 1e9)


def _counted(trainer: DraftTrainer, inputs: dict) -> float:
    """Where the device does not say: weights, and the float32 logits of target and draft with their gradients."""
    target, module = trainer.teacher.target, trainer.model
    weights = sum(weight.numel() * weight.element_size() for weight in target.parameters())
    for weight in module.parameters():
        weights += (COPIES if weight.requires_grad else 1) * weight.numel() * weight.element_size()
    with torch.no_grad():
        lesson = trainer.teacher(**inputs)
        guesses = trainer.student.predictions(module(**trainer.student.inputs(lesson)), lesson)
    num_logits = lesson.logits.numel() + 3 * sum(guess.logits.numel() for guess in guesses)
    return weights + 4 * num_logits
