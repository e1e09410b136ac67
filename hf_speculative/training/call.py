"""The public call: train a draft for a target."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .deadline import Watch
from .results import Trained
from .run import Run
from .settings import TABLES, Settings


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
    run = Run(target, output, settings, tokenizer, watch or Watch(), store)
    run.begin(resume)
    run.read(dataset, reading or {})
    run.answer()
    if settings.kind == TABLES:
        return run.tables()
    run.prepare(arguments)
    return run.train(resume)
