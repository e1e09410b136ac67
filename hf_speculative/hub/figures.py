"""Figures of evaluations by use case and setting, for model cards."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..measuring import Evaluation, Setting, Totals
from ..measuring.speedup import Speedup
from ..measuring.totals import FEWEST_TOKENS
from .pairing_file import is_hub_name

#: endings of files that hold prompts
FILES = re.compile(r"\.(jsonl|json|csv|tsv|txt|parquet|arrow)(\.gz)?$")

#: an evaluation or its file, several of them, or several by use case
Evaluations: TypeAlias = (
    "Evaluation | str | Path | Sequence[Evaluation | str | Path] | Mapping[str, Evaluation | str | Path]"
)


@dataclass(frozen=True)
class Figure:
    """One setting of one evaluation, all its prompts together.

    Attributes:
        use_case: the kind of prompts.
    """

    use_case: str
    evaluation: Evaluation
    totals: Totals

    @property
    def setting(self) -> Setting:
        return self.totals.setting

    @property
    def speedup(self) -> Speedup:
        assert self.totals.speedup is not None  # `figures_of` takes what was measured
        return self.totals.speedup

    @property
    def mean_acceptance_length(self) -> float | None:
        """Bonus token included; None if nothing was drafted."""
        counts = self.totals.statistics
        return counts.mean_acceptance_length if counts is not None and counts.num_spec_steps else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        counts = self.totals.statistics
        return counts.draft_acceptance_rate if counts is not None and counts.num_draft_tokens else None

    def conditions(self, draft_name: str | None) -> dict[str, Any]:
        """What the figure depends on, ready for a model-index."""
        setting, header, environment = self.setting, self.evaluation.header, self.evaluation.environment
        how = setting.shown_options
        if setting.draft is not None:
            is_own = draft_name and Path(draft_name).is_absolute()  # a folder of this machine, which nobody else has
            how["draft_model"] = Path(draft_name or "").name if is_own else draft_name
        if setting.max_draft_tokens is None:
            how.setdefault("num_draft_tokens", "chosen each round")
        return {
            "use_case": self.use_case,
            **how,
            "temperature": setting.temperature,
            "batch_size": header["batch_size"],
            "max_new_tokens": header["generate"].get("max_new_tokens"),
            "dtype": header["dtype"],
            "hardware": environment["device"],
            "hf_speculative": environment["hf_speculative"],
        }


def by_use_case(given: Evaluations) -> dict[str, Evaluation]:
    """The evaluations by use case, which is the name of the data set unless the user named it.

    Raises:
        TypeError: something is neither an evaluation nor a file.
        ValueError: there is none, two have one name, or they are about different targets.
    """
    if isinstance(given, Mapping):
        found = {name: _loaded(one) for name, one in given.items()}
    else:
        several: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
        pairs = [(_use_case(evaluation), evaluation) for evaluation in map(_loaded, several)]
        found = dict(pairs)
        if len(found) < len(pairs):
            names = ", ".join(name for name, _ in pairs)
            raise ValueError(f"evaluations of one name ({names}): pass `{{use case: evaluation}}` to tell them apart.")
    if not found:
        raise ValueError("no evaluation: pass what `hf_speculative.evaluate` returned, or its file.")
    targets = list(dict.fromkeys(evaluation.header["target"] for evaluation in found.values()))
    if len(targets) > 1:
        raise ValueError(f"the evaluations are about several targets, {', '.join(targets)}: pass those of one.")
    return found


def choose_draft(evaluations: Mapping[str, Evaluation], draft_model: str | None) -> str | None:
    """The name of the draft that was evaluated; None where all drafts came from the target itself.

    Raises:
        ValueError: several were evaluated and none is chosen, or the one chosen was not.
    """
    found = [s.draft for evaluation in evaluations.values() for s in evaluation.settings if s.draft is not None]
    names = list(dict.fromkeys(found))
    if draft_model is None and len(names) <= 1:
        return names[0] if names else None
    if draft_model is None:
        raise ValueError(
            f"several drafts were evaluated, {', '.join(names)}: choose one, `draft_model=` (`--draft-model`)."
        )
    if draft_model not in names:
        raise ValueError(
            f"`draft_model={draft_model!r}` is none of the drafts evaluated, {', '.join(names) or 'none'}: name one of them."
        )
    return draft_model


def figures_of(evaluations: Mapping[str, Evaluation], draft: str | None) -> list[Figure]:
    """What was measured with the draft, and without any draft model, in order of use case and setting.

    Raises:
        ValueError: nothing was measured yet.
    """
    figures = [
        Figure(use_case, evaluation, totals)
        for use_case, evaluation in evaluations.items()
        for setting in evaluation.settings
        if setting.is_ours and setting.draft in (None, draft)
        if (totals := evaluation.totals(setting)).speedup is not None
    ]
    if not figures:
        raise ValueError(
            f"nothing was measured yet in these evaluations, or fewer than {FEWEST_TOKENS} tokens: run them first, or on more "
            "prompts."
        )
    return figures


def _loaded(given: Evaluation | str | Path) -> Evaluation:
    if isinstance(given, (str, Path)):
        return Evaluation.load(given)
    if not isinstance(given, Evaluation):
        raise TypeError(
            f"`evaluations` holds an object of type {type(given).__name__}: pass an Evaluation, or the file of one."
        )
    return given


def is_on_hub(name: str) -> bool:
    """Whether it can be the name of a Hub repository, and is no file or folder."""
    return is_hub_name(name) and not Path(name).exists() and not FILES.search(name)


def data_set_name(evaluation: Evaluation) -> str:
    """The name of the data set on the Hub, or of the file without its folder and ending."""
    name: str = evaluation.header["dataset"]["name"]
    return name if is_on_hub(name) else FILES.sub("", Path(name).name)


def _use_case(evaluation: Evaluation) -> str:
    config = evaluation.header["dataset"]["config"]
    name = data_set_name(evaluation).split("/")[-1]
    return f"{name}, {config}" if config else name
