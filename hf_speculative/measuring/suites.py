"""The suites that papers and engines report: where their questions are, and how a row becomes what a user says."""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, meta

from ..command.arguments import DATA_FILES
from .journal import BadRow
from .rows import read_rows, reader

if TYPE_CHECKING:
    from datasets import Dataset

#: what stands in rows of SPEED-Bench whose text its licence leaves at another source
MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
#: columns of conversations and of single prompts, and of their categories, in a file of the user's
TURNS, CATEGORY = "turns", "category"


@dataclass(frozen=True)
class Suite:
    """A set of questions.

    Attributes:
        source: its name on the Hub, or the address of a file of JSON lines.
        turns: the column with what the user says, a text or a list of them, or a Jinja template over the columns.
        configs: its configurations, the default first.
        category: the column of categories, where there is one.
    """

    source: str
    turns: str
    configs: tuple[str, ...] = ()
    split: str = "test"
    category: str | None = None


#: Chen et al. 2021; Cobbe et al. 2021; Lightman et al. 2023; Austin et al. 2021; Taori et al. 2023; See et al. 2017;
#: Zheng et al. 2023; Xia et al. 2024; Abramovich et al. 2026
SUITES = {
    "speed-bench": Suite(
        "nvidia/SPEED-Bench",
        TURNS,
        ("qualitative", *(f"throughput_{size}k" for size in (1, 2, 8, 16, 32))),
        category=CATEGORY,
    ),
    "spec-bench": Suite(
        "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        TURNS,
        split="train",
        category=CATEGORY,
    ),
    "mt-bench": Suite("HuggingFaceH4/mt_bench_prompts", "prompt", split="train", category=CATEGORY),
    "humaneval": Suite("openai/openai_humaneval", "prompt"),
    "gsm8k": Suite("openai/gsm8k", "question", ("main",)),
    "math-500": Suite("HuggingFaceH4/MATH-500", "problem", category="subject"),
    "mbpp": Suite(
        "google-research-datasets/mbpp",
        "You are an expert Python programmer, and here is your task: {{ text }} Your code should pass these tests:\n\n"
        "{{ test_list | join('\n') }}",
        ("full",),
    ),
    "alpaca": Suite(
        "tatsu-lab/alpaca", "{{ instruction }}{% if input %}\n\n{{ input }}{% endif %}", split="train"
    ),
    "cnn-dm": Suite("abisee/cnn_dailymail", "Summarize:\n\n{{ article }}", ("3.0.0",)),
}


def check_suite(asked: str) -> tuple[str, Suite | None, str | None, Path | None]:
    """The parts of `NAME`, `NAME/CONFIG`, either with `=FILE`, or of a `FILE` of one's own.

    Returns:
        The name in tables; the suite; its configuration; the file.

    Raises:
        ValueError: there is no such suite, configuration or file.
    """
    named, has_file, file = asked.partition("=")
    name, has_config, config = named.partition("/")
    suite, path = SUITES.get(name), Path(file if has_file else asked)
    is_own = suite is None and not has_file and path.suffix.lower() in DATA_FILES
    if suite is None and not is_own:
        raise ValueError(f"--suite {asked} is not known: choose from {', '.join(SUITES)}, or name a file (.jsonl).")
    if (has_file or is_own) and not path.is_file():
        raise ValueError(f"--suite {asked}: there is no file {path}.")
    if suite is None:
        return path.name.partition(".")[0], None, None, path
    if has_config and config not in suite.configs:
        raise ValueError(f"--suite {asked}: {config!r} is none of its configurations, {', '.join(suite.configs) or '-'}.")
    return named, suite, config or next(iter(suite.configs), None), path if has_file else None


def questions(asked: str, num_prompts: int | None = None) -> "Dataset":
    """The conversations of a suite, in an order of which every beginning is a sample of all categories.

    Args:
        asked: as `check_suite` reads it.
        num_prompts: at most so many.

    Returns:
        Rows with `turns`, what the user says at each turn, and `category`, `""` without one. Its `info` has the name of the
        suite, and as a description what was left out.

    Raises:
        ValueError: the suite cannot be read, or a row has no such column.
    """
    from datasets import Dataset

    name, suite, config, path = check_suite(asked)
    rows = _rows(asked, suite, config, path)
    columns = {*map(str, rows[0])}
    turns, category = (TURNS if TURNS in columns else "prompt", CATEGORY) if suite is None else (suite.turns, suite.category)
    if TURNS in columns and turns == "prompt":  # as MT-Bench's own file has it
        turns = TURNS
    missing = (meta.find_undeclared_variables(Environment().parse(turns)) or {turns}) - columns
    if missing:
        raise ValueError(
            f"--suite {asked}: the column {', '.join(sorted(missing))} is missing: it has {', '.join(sorted(columns))}."
        )
    read, found = reader(turns, rows, "suite"), []
    for row in rows:
        said = read(row)
        said = [said] if isinstance(said, str) else said
        if not said or not all(isinstance(one, str) and one for one in said):
            raise ValueError(f"--suite {asked}: row {len(found)} has {str(said)[:60]!r} in place of what a user says.")
        found.append({TURNS: list(said), CATEGORY: str(row.get(category) or "")})
    usable = [one for one in found if not any(MASKED in text for text in one[TURNS])]
    if not usable:
        raise ValueError(f"--suite {asked}: every row is masked: fill them in by the suite's own prepare_data.py.")
    sample = Dataset.from_list(_mixed(usable)[:num_prompts])
    sample.info.dataset_name = name
    num_masked = len(found) - len(usable)
    sample.info.description = (
        f"{name}: {num_masked} of {len(found)} rows are masked and left out; the suite's own prepare_data.py fills them in."
        if num_masked
        else ""
    )
    return sample


def _rows(asked: str, suite: Suite | None, config: str | None, path: Path | None) -> list[Any]:
    from datasets import load_dataset

    try:
        if path is not None:
            rows = read_rows(path)
        elif suite is not None and suite.source.startswith("https:"):
            rows = list(load_dataset("json", data_files=suite.source, split=suite.split))
        else:
            assert suite is not None  # one without has a file
            rows = list(load_dataset(suite.source, config, split=suite.split))
    except Exception as error:  # of the network, of the Hub, of a format
        what = path or (suite and suite.source)
        raise ValueError(
            f"--suite {asked}: {what} cannot be read ({' '.join(str(error).split())}). Or give a file with its rows, "
            f"--suite {asked.partition('=')[0]}=FILE."
        ) from error
    for row in rows:
        if isinstance(row, BadRow):
            raise ValueError(f"--suite {asked}: row {row.index}: {row.message}.")
    return rows


def _mixed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In a random order that is the same each time, a row of each category in turn."""
    shuffled = random.Random(0).sample(rows, len(rows))
    seen: Counter[str] = Counter()
    ranks = []
    for row in shuffled:
        ranks.append(seen[row[CATEGORY]])
        seen[row[CATEGORY]] += 1
    return [row for _, row in sorted(zip(ranks, shuffled, strict=True), key=lambda pair: pair[0])]
