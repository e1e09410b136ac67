"""Record results at once, one JSON line for each call of `generate`, so that a killed run can be continued without loss."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from ..call.statistics import RowStatistics, Statistics, without_nan
from ..reports import files
from .speedup import Work

#: 6: rows have no text of each token
FORMAT = 6


@dataclass
class Row:
    """The result of one prompt in one call.

    Attributes:
        index: of the prompt in the data set, from 0; later turns of conversations come behind all rows.
        new_ids: the new tokens, without padding.
        text: the new tokens as text, without special tokens.
        prompt: the prompt as text, recorded in plain calls only.
        acceptance_prob: for each draft token the probability that it was kept, given the draft; `None` for the target's own.
        statistics: counts of this row; `None` for plain decoding.
        seconds: from the start of the call to the end of the row; `None` if unknown.
    """

    index: int
    new_ids: list[int]
    text: str
    prompt: str | None = None
    acceptance_prob: list[float | None] = field(default_factory=list)
    statistics: RowStatistics | None = None
    seconds: float | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Row":
        counts = values["statistics"]
        return cls(**values | {"statistics": counts and RowStatistics.from_dict(counts)})

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"statistics": self.statistics and self.statistics.to_dict()}


@dataclass
class Call:
    """One call of `generate`: a batch of prompts under one setting.

    Attributes:
        setting: its name.
        batch: the number of the batch, from 0.
        seconds: wall time.
        rows: the results of its prompts.
        statistics: counts and times of the whole call, without `rows`; `None` for plain decoding.
        first_seconds: until the first new tokens came; `None` if unknown.
        num_first_tokens: the number of these, of all rows.
        num_passes: target passes of a rival, 0 where it counts none; `None` for our own and plain calls.
        peak_bytes: on a GPU, the peak memory beyond what was allocated before.
    """

    setting: str
    batch: int
    seconds: float
    rows: list[Row]
    statistics: Statistics | None = None
    first_seconds: float | None = None
    num_first_tokens: int = 0
    num_passes: int | None = None
    peak_bytes: int | None = None

    @property
    def num_new_tokens(self) -> int:
        return sum(len(row.new_ids) for row in self.rows)

    @property
    def num_target_passes(self) -> int:
        """Target passes; plain decoding runs one for each token of its longest row."""
        if self.statistics is not None:
            return self.statistics.num_target_forwards
        if self.num_passes is not None:
            return self.num_passes
        return max((len(row.new_ids) for row in self.rows), default=0)

    @property
    def work(self) -> Work:
        return Work(self.num_new_tokens, self.seconds)

    @property
    def decoding(self) -> Work | None:
        """The work after the first tokens, without the prompt's pass and set-up. `None` where their time is unknown."""
        if self.first_seconds is None:
            return None
        return Work(self.num_new_tokens - self.num_first_tokens, self.seconds - self.first_seconds)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Call":
        counts = values["statistics"]
        rows = [Row.from_dict(row) for row in values["rows"]]
        return cls(**values | {"rows": rows, "statistics": counts and Statistics.from_dict(counts)})

    def to_dict(self) -> dict[str, Any]:
        counts = self.statistics and {name: v for name, v in self.statistics.to_dict().items() if name != "rows"}
        return vars(self) | {"rows": [row.to_dict() for row in self.rows], "statistics": counts}


@dataclass(frozen=True)
class BadRow:
    """A row of the data set, or a prompt, that could not be used."""

    index: int
    message: str


@dataclass(frozen=True)
class Difference:
    """Where a greedy text differs from plain decoding's first.

    Attributes:
        position: the first new token that differs, from 0.
        logit_gap: between the target's two best tokens there, from one pass over the text before. Close to 0 for near-ties,
            which break either way in half precision; `None` if infinite or not computed.
    """

    setting: str
    index: int
    position: int
    logit_gap: float | None


@dataclass(frozen=True)
class Failure:
    """A setting that could not be measured, and why."""

    setting: str
    message: str


Entry: TypeAlias = Call | BadRow | Difference | Failure


@dataclass
class Journal:
    """All that is known of an evaluation.

    Attributes:
        header: models, data, options and environment.
        calls: by setting and number of the batch.
        bad_rows: by index.
        differences: by setting and index.
        scores: for each setting's name, the task scores of all its texts.
        failures: by setting.
        file: entries are written to it at once, a whole line at a time.
    """

    header: dict[str, Any]
    calls: dict[tuple[str, int], Call] = field(default_factory=dict)
    bad_rows: dict[int, BadRow] = field(default_factory=dict)
    differences: dict[tuple[str, int], Difference] = field(default_factory=dict)
    scores: dict[str, dict[str, float | None]] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    file: IO[bytes] | None = field(default=None, compare=False)

    def add(self, entry: Entry) -> None:
        """Note an entry."""
        match entry:
            case Call():
                self.calls[entry.setting, entry.batch] = entry
            case BadRow():
                self.bad_rows[entry.index] = entry
            case Difference():
                self.differences[entry.setting, entry.index] = entry
            case Failure():
                self.failures[entry.setting] = entry
        if self.file is not None:
            files.append(self.file, _line(entry), KEPT)

    def merge(self, other: "Journal") -> None:
        """Add the entries of another journal."""
        for name in ("calls", "bad_rows", "differences", "scores", "failures"):
            getattr(self, name).update(getattr(other, name))

    @contextmanager
    def written_to(self, path: Path | None) -> Iterator[None]:
        """Write the journal to a file, if any, then each further entry."""
        if path is None:
            yield
            return
        self.write(path)
        with path.open("ab", buffering=0) as self.file:  # so that nothing is left to be written when it is closed
            try:
                yield
            finally:
                self.file = None

    @classmethod
    def read(cls, path: Path) -> "Journal":
        """The file of an evaluation, finished or not. A last line that a kill cut off is left out.

        Raises:
            ValueError: it is no such file, or there is none.
        """
        if not path.is_file():
            kind = "is no file" if path.exists() else "is not there"
            raise ValueError(f"{path} {kind}: name one that `hf-speculative eval --results` wrote.")
        content = path.read_bytes()
        lines = content.split(b"\n")  # no text yet: a kill may have cut a character in two
        del lines[-1]  # empty after a whole line, else what a kill left of one
        try:
            (header,) = [entry["header"] for entry in map(json.loads, lines[:1])]
            journal, version = cls(header), header["format"]
            for line in lines[1:] if version == FORMAT else ():
                ((kind, values),) = json.loads(line).items()
                if kind == "scores":
                    journal.scores = values
                else:
                    journal.add(Call.from_dict(values) if kind == "call" else KINDS[kind](**values))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the file of an evaluation: name one that `--results` wrote.") from error
        if version != FORMAT:
            formats = f"another version of hf_speculative, in format {version}, and this one reads {FORMAT}"
            raise ValueError(f"{path} was written by {formats}: name another file, or use that version.")
        return journal

    def write(self, path: Path) -> None:
        """Write the whole file in one step: a kill leaves the old file or the new one."""
        bad_rows = [row for _, row in sorted(self.bad_rows.items())]
        calls = sorted(self.calls.values(), key=lambda call: call.batch)
        entries: list[Entry] = [*bad_rows, *calls, *self.differences.values(), *self.failures.values()]
        lines = [_dumped({"header": self.header}), *map(_line, entries), _dumped({"scores": self.scores})]
        files.write(path, "".join(lines))


#: of a file that cannot be added to
KEPT = "the file has all that was decoded before, and the same call continues it once there is room"

#: what the lines of a file hold, by their key
KINDS: dict[str, type[Entry]] = {"call": Call, "bad_row": BadRow, "difference": Difference, "failure": Failure}


def _line(entry: Entry) -> str:
    (key,) = (key for key, kind in KINDS.items() if isinstance(entry, kind))
    return _dumped({key: entry.to_dict() if isinstance(entry, Call) else asdict(entry)})


def _dumped(line: dict[str, Any]) -> str:
    return json.dumps(without_nan(line), ensure_ascii=False, allow_nan=False) + "\n"
