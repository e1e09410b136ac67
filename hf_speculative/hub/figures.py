"""What a model card takes from evaluations: by use case, and of one draft."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..measuring import Evaluation, Totals
from .pairing_file import is_hub_name

#: endings of files that hold prompts
FILES = re.compile(r"\.(jsonl|json|csv|tsv|txt|parquet|arrow)(\.gz)?$")

#: an evaluation or its file, several of them, or several by use case
Evaluations: TypeAlias = "Evaluation | str | Path | Sequence[Evaluation | str | Path] | Mapping[str, Evaluation | str | Path]"


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
    drafts = (setting.draft for evaluation in evaluations.values() for setting in evaluation.settings)
    names = [name for name in dict.fromkeys(drafts) if name is not None]
    if draft_model is None and len(names) <= 1:
        return next(iter(names), None)
    if draft_model is None:
        raise ValueError(f"several drafts were evaluated, {', '.join(names)}: choose one by `draft_model`.")
    if draft_model not in names:
        known = ", ".join(names) or "none"
        raise ValueError(f"`draft_model={draft_model!r}` is none of the drafts evaluated, {known}.")
    return draft_model


def measured(evaluation: Evaluation, draft: str | None) -> list[Totals]:
    """What was measured with the draft, and without any draft model, in order of settings."""
    ours = [setting for setting in evaluation.settings if setting.is_ours and setting.draft in (None, draft)]
    return [totals for totals in map(evaluation.totals, ours) if totals.speedup is not None]


def speedup_of(totals: Totals) -> float:
    """Of what was measured."""
    assert totals.speedup is not None
    return totals.speedup.median


def _loaded(given: Evaluation | str | Path) -> Evaluation:
    if isinstance(given, (str, Path)):
        return Evaluation.load(given)
    if not isinstance(given, Evaluation):
        raise TypeError(f"`evaluations` holds a value of type {type(given).__name__}: pass an Evaluation, or its file.")
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
