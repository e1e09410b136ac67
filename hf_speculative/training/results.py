"""The result of a training run."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..call.statistics import without_nan
from ..embedded import FOLDER
from ..reports import files
from .acceptance import GREEDY, SAMPLED

#: in the folder of the draft
FILE = "training.json"
EMBEDDED_TARGET = "the embedded target"
#: settings that a run may be resumed with others of: it goes on for longer
MAY_CHANGE = ("steps", "minutes", "num_evaluations")


@dataclass(frozen=True)
class Point:
    """What was measured after `step` steps.

    Attributes:
        acceptance_length: by way to decode, the tokens a round brings, bonus token included.
        by_position: by way, the share of rounds that kept the draft up to each position.
        num_tokens: by way, the new tokens that these rest on.
    """

    step: int
    acceptance_length: dict[str, float]
    by_position: dict[str, list[float]]
    num_tokens: dict[str, int]


@dataclass
class Trained:
    """A run: what was asked for, what it was made of, what it brought.

    Attributes:
        folder: what `draft_model=` takes.
        target: name of the target.
        kind: of the draft.
        settings: as `Settings.to_dict`.
        data: counts of prompts, answers, tokens, repeated and broken rows, and where they came from.
        num_steps: steps that were made; until the run has ended, those that are planned.
        seconds: of training steps alone.
        curve: of the held-out prompts, by step.
        losses: `(step, loss)`.
        best_step: the step whose weights were kept.
        untrained: what `draft_model="auto"` brings, which needs no training.
    """

    folder: Path
    target: str
    kind: str
    settings: dict[str, Any]
    data: dict[str, Any]
    environment: dict[str, Any]
    num_parameters: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    curve: list[Point] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    untrained: Point | None = None

    @property
    def main(self) -> str:
        """The way to decode that it was trained for."""
        return SAMPLED if self.settings["use"]["temperature"] > 0 else GREEDY

    @property
    def has_no_steps(self) -> bool:
        """It was learned in one reading."""
        return not self.num_parameters

    @property
    def before(self) -> Point | None:
        return next((point for point in self.curve if point.step == 0), None)

    @property
    def after(self) -> Point | None:
        """That of the weights that were kept."""
        return next((point for point in self.curve if point.step == self.best_step), None)

    def follow(self, log_history: list[dict[str, Any]]) -> None:
        """Takes over what a Trainer logged."""
        self.losses = [(entry["step"], float(entry["loss"])) for entry in log_history if "loss" in entry]
        entries = {entry["step"]: entry for entry in log_history if "eval_acceptance_length" in entry}
        self.curve = [point_of(step, entry) for step, entry in sorted(entries.items())]

    def to_dict(self) -> dict[str, Any]:
        return without_nan(asdict(self) | {"folder": str(self.folder)})

    def write(self) -> None:
        files.write(self.folder / FILE, json.dumps(self.to_dict(), indent=1) + "\n")

    def check(self, settings: dict[str, Any]) -> None:
        """Whether a run goes on with the settings that it was begun with.

        Raises:
            ValueError: it does not.
        """
        for name, value in json.loads(json.dumps(settings)).items():
            if name not in MAY_CHANGE and self.settings.get(name) != value:
                held = f"a run whose {name} is {self.settings.get(name)!r} and not {value!r}"
                way_out = "resume it as it was begun, or name another folder"
                raise ValueError(f"`output={str(self.folder)!r}` holds {held}: {way_out}.")

    @classmethod
    def read(cls, folder: Path) -> "Trained":
        """What an earlier run left in `folder`.

        Raises:
            ValueError: it left nothing there.
        """
        try:
            values = json.loads((folder / FILE).read_text())
            points = [Point(**point) for point in values["curve"]]
            losses = [(step, loss) for step, loss in values["losses"]]
            untrained = Point(**values["untrained"]) if values.get("untrained") else None
            return cls(**values | {"folder": folder, "curve": points, "losses": losses, "untrained": untrained})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds no run that can be read ({error}): name another.") from error


def point_of(step: int, entry: dict[str, Any]) -> Point:
    """Metrics of a `Meter`."""
    ways = [way for way in (GREEDY, SAMPLED) if entry.get(f"eval_{way}_acceptance_length") is not None]
    lengths = {way: float(entry[f"eval_{way}_acceptance_length"]) for way in ways}
    num_tokens = {way: int(entry[f"eval_{way}_num_tokens"]) for way in ways}
    prefixes = {way: f"eval_{way}_position_" for way in ways}  # which come in order
    positions = {way: [float(v) for n, v in entry.items() if n.startswith(prefixes[way])] for way in ways}
    return Point(step, lengths, positions, num_tokens)


def name_of(model: PreTrainedModel) -> str:
    """What a report calls it."""
    name = model.config.name_or_path
    return EMBEDDED_TARGET if Path(name) == FOLDER / "target" else name or type(model).__name__
