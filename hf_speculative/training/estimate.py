"""Estimate the time of a training step from a few of them."""

import statistics

import torch

from ..reports.timing import timed
from .trainer import DraftTrainer

#: steps that are timed, after one that is not
REPEATS = 3
#: of a run's time
SHARE = 0.05


def step_seconds(trainer: DraftTrainer, run_seconds: float | None = None) -> float:
    """Time an optimizer step on the first texts; weights and random numbers stay as they are.

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

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seconds = [timed(step, device)[1]]
        while len(seconds) <= REPEATS and (run_seconds is None or sum(seconds) < SHARE * run_seconds):
            seconds.append(timed(step, device)[1])
    module.train(was_training)
    return statistics.median(seconds[1:] or seconds) * args.gradient_accumulation_steps  # the first one is slower
