"""The suites that papers and engines report: where their questions are, and how a row becomes a user's messages."""

import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import datasets

from ..command.checks import DATA_FILES
from .journal import BadRow
from .rows import read_rows, reader

#: marks rows of SPEED-Bench whose text is only at its original source
MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
TURNS, CATEGORY = "turns", "category"


@dataclass(frozen=True)
class Suite:
    """A set of questions.

    Attributes:
        source: its name on the Hub, or the address of a file of JSON lines.
        turns: the column with the user's messages, a text or a list, or a Jinja template over the columns.
        configs: its configurations, the default first.
        category: the column of categories, if it has one.
    """

    source: str
    turns: str = TURNS
    split: str = "test"
    category: str = CATEGORY
    configs: tuple[str | None, ...] = (None,)


SPEED = ("qualitative", "throughput_1k", "throughput_2k", "throughput_8k", "throughput_16k", "throughput_32k")
SPEC = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
MBPP = "You are an expert Python programmer, and here is your task: {{ text }} Your code should pass these tests:\n\n"
ALPACA = "{{ instruction }}{{ '\n\n' ~ input if input }}"
#: Abramovich et al. 2026; Xia et al. 2024; Zheng et al. 2023; Chen et al. 2021; Cobbe et al. 2021; Lightman et al. 2023;
#: Austin et al. 2021, section 4.1; Taori et al. 2023; See et al. 2017
SUITES = {
    "speed-bench": Suite("nvidia/SPEED-Bench", configs=SPEED),
    "spec-bench": Suite(SPEC, split="train"),
    "mt-bench": Suite("HuggingFaceH4/mt_bench_prompts", "prompt", "train"),
    "humaneval": Suite("openai/openai_humaneval", "prompt"),
    "gsm8k": Suite("openai/gsm8k", "question", configs=("main",)),
    "math-500": Suite("HuggingFaceH4/MATH-500", "problem", category="subject"),
    "mbpp": Suite("google-research-datasets/mbpp", MBPP + "{{ test_list | join('\n') }}", configs=("full",)),
    "alpaca": Suite("tatsu-lab/alpaca", ALPACA, "train"),
    "cnn-dm": Suite("abisee/cnn_dailymail", "Summarize:\n\n{{ article }}", configs=("3.0.0",)),
}


def questions(asked: str, num_prompts: int | None = None) -> datasets.Dataset:
    """Load the conversations of a suite, in an order whose every beginning is a sample of all categories.

    Args:
        asked: `NAME` or `NAME/CONFIG`, with `=FILE` to read a file instead of the Hub; or a `FILE` with a column `turns` or
            `prompt`.
        num_prompts: the most conversations to use.

    Returns:
        Rows with `turns`, the user's message at each turn, and `category`, `""` without one. Its `info` has the name of the
        suite, and a description of rows that were left out.

    Raises:
        ValueError: there is no such suite, it cannot be read, or it has no such column.
    """
    named, _, file = asked.partition("=")
    name, _, config = named.partition("/")
    suite = SUITES.get(name)
    if suite is None:
        if Path(asked).suffix.lower() not in DATA_FILES:
            raise ValueError(f"--suite {asked} is not known: choose from {', '.join(SUITES)}, or name a file (.jsonl).")
        suite, named, config, file = Suite("", "prompt"), Path(asked).name.partition(".")[0], "", asked
    if config and config not in suite.configs:
        known = ", ".join(filter(None, suite.configs)) or "none"
        raise ValueError(f"--suite {asked}: {config!r} is none of its configurations: {known}.")
    rows = _rows(f"--suite {asked}", suite, config or suite.configs[0], file)
    try:
        read = reader(TURNS if TURNS in rows[0] else suite.turns, rows, "turns")
        told = [read(row) for row in rows]
    except ValueError as error:
        raise ValueError(f"--suite {asked}: {error}") from error
    found: list[dict[str, Any]] = []
    for index, (row, one) in enumerate(zip(rows, told, strict=True)):
        said = [one] if isinstance(one, str) else one
        if not isinstance(said, list) or not said or not all(isinstance(one, str) and one for one in said):
            raise ValueError(f"--suite {asked}: row {index} has {str(said)[:60]!r} in place of what a user says.")
        found.append({TURNS: list(said), CATEGORY: str(row.get(suite.category) or "")})
    usable = [one for one in found if not any(MASKED in text for text in one[TURNS])]
    masked = f"{len(found) - len(usable)} of {len(found)} rows are masked; its prepare_data.py fills them in"
    if not usable:
        raise ValueError(f"--suite {asked}: {masked}.")
    sample = datasets.Dataset.from_list(_mixed(usable)[:num_prompts])
    sample.info.dataset_name = named
    sample.info.description = "" if len(usable) == len(found) else f"{named}: {masked}."
    return sample


def _rows(asked: str, suite: Suite, config: str | None, file: str) -> list[Any]:
    by_address = {"path": "json", "data_files": suite.source}
    source = by_address if suite.source.startswith("https:") else {"path": suite.source, "name": config}
    try:
        rows = read_rows(Path(file)) if file else list(datasets.load_dataset(**source, split=suite.split))
    except Exception as error:  # of the network, of the Hub, of a format
        told = " ".join(str(error).split())
        other = "" if file else f" Or give a file with its rows, {asked.partition('=')[0]}=FILE."
        raise ValueError(f"{asked}: {file or suite.source} cannot be read: {told}{other}") from error
    for row in rows:
        if isinstance(row, BadRow):
            raise ValueError(f"{asked}: row {row.index}: {row.message}.")
    return rows


def _mixed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order rows at random, the same each time, with the categories in turn."""
    ranks: defaultdict[str, count] = defaultdict(count)
    return sorted(random.Random(0).sample(rows, len(rows)), key=lambda row: next(ranks[row[CATEGORY]]))
