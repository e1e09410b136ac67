"""What a run chooses of transformers' `TrainingArguments`, and where it goes on after a stop."""

import json
from pathlib import Path
from typing import Any

from .settings import Settings

#: how often the loss is logged in a run
LOGS = 50
#: the share of steps with a rising learning rate
WARMUP = 0.05


def texts_of_a_pass(settings: Settings, count: int) -> int:
    """How many texts go through the draft at once, in each of `count` processes.

    Raises:
        ValueError: a step cannot be split like this.
    """
    num_passes = settings.accumulate * count
    if settings.batch_size % num_passes:
        of_processes = f" of {count} processes" if count > 1 else ""
        raise ValueError(
            f"`batch_size={settings.batch_size}` cannot be split into {num_passes} equal passes{of_processes}: give a multiple."
        )
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
