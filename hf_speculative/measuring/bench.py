"""Benchmarks: evaluations over built-in prompts or suites, one for each batch size and context length or temperature."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..call.option_table import DRAFTS

# Modules that import torch are imported where they are used: the help of the command lists the methods.
if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from .results import Evaluation
    from .settings import Setting

#: modules of the standard library whose source is the built-in text
TEXT_MODULES = ("argparse", "typing", "inspect", "subprocess", "dataclasses", "ast")
#: the question to a chat model about that text
QUESTION = "Explain what this Python code does:\n\n"
#: makes the options of a setting from a draft length
Options = Callable[[int | None], dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """One or more settings of a benchmark.

    Attributes:
        name: on the command line.
        options: of each of its settings, given a draft length.
        takes_length: it has a setting for each draft length; else one.
        needs: the name of the draft that it needs; without it the method is left out.
    """

    name: str
    description: str
    options: tuple[Options, ...]
    takes_length: bool = True
    needs: str | None = None


def _of_draft(name: str, **more: Any) -> Options:
    return lambda length: {"draft_model": name, "num_draft_tokens": length, **more}


METHODS = {
    method.name: method
    for method in (
        Method(
            "assisted",
            "transformers' assisted generation; batch 1 only",
            (lambda length: {"rival": "assisted", "num_draft_tokens": length},),
            needs="draft",
        ),
        Method("draft", "the draft model", (_of_draft("draft"),), needs="draft"),
        Method("head", "the embedded pair's EAGLE-3 head", (_of_draft("head"),), needs="head"),
        *(
            Method(name, f"no draft model, `draft_model={name!r}`", (_of_draft(name),), takes_length=False)
            for name in DRAFTS.methods
        ),
        Method(
            "optimized",
            "plain decoding and the draft model, both compiled",
            (lambda length: {"rival": "plain, compiled"}, _of_draft("draft", optimize=True)),
            needs="draft",
        ),
    )
}
DEFAULT_METHODS = ("assisted", "draft", "head", "auto")


@dataclass(frozen=True)
class Place:
    """The place of an evaluation in a benchmark: batch size, context or suite, and temperatures.

    Attributes:
        batch_size: prompts decoded together.
        context: tokens of each built-in prompt.
        temperatures: 0 is greedy.
        suite: its name; `None` for built-in prompts.
    """

    batch_size: int = 1
    context: int = 64
    temperatures: tuple[float, ...] = (0.0,)
    suite: str | None = None

    def __post_init__(self):
        for name in ("batch_size", "context"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"`{name}={value}`: give a number of 1 or more.")

    def __str__(self) -> str:
        if self.suite is not None:
            return f"{self.suite}, T={self.temperatures[0]:g}, concurrency {self.batch_size}"
        return f"batch {self.batch_size}, context {self.context}"


def sweep(
    batch_size: Sequence[int] = (1,),
    context: Sequence[int] = (64,),
    temperature: Sequence[float] = (0.0,),
    grid: bool = False,
) -> list[Place]:
    """List the places of a sweep: one list varies at a time, the others at their first value; `grid`: all combinations.

    Raises:
        ValueError: a list is empty, or a value out of range.
    """
    for name, values in (("batch_size", batch_size), ("context", context), ("temperature", temperature)):
        if not values:
            raise ValueError(f"`{name}` is empty: give one value or more.")
    temperatures = tuple(dict.fromkeys(temperature))
    if grid:
        return [
            Place(b, c, temperatures) for b, c in itertools.product(dict.fromkeys(batch_size), dict.fromkeys(context))
        ]
    base = Place(batch_size[0], context[0], temperatures)
    others = [(size, context[0]) for size in batch_size] + [(batch_size[0], length) for length in context]
    return [base, *(Place(*other, temperatures[:1]) for other in dict.fromkeys(others) if other != others[0])]


def cells(
    suites: Iterable[str], batch_size: Sequence[int] = (1,), temperature: Sequence[float] = (0.0,)
) -> list[Place]:
    """List the places of suites: each at every temperature and batch size (the concurrency)."""
    every = itertools.product(dict.fromkeys(suites), dict.fromkeys(temperature), dict.fromkeys(batch_size))
    return [Place(size, temperatures=(t,), suite=suite) for suite, t, size in every]


@dataclass
class Pair:
    """A target and its drafts.

    Attributes:
        drafts: by name; `draft` is that of assisted generation.
        draft_tokenizer: of `draft`, if its vocabulary is another.
    """

    target: PreTrainedModel
    drafts: dict[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    draft_tokenizer: PreTrainedTokenizerBase | None = None

    def settings(self, methods: Iterable[str], lengths: Sequence[int | None], place: Place) -> list[Setting]:
        """List the settings of `methods` at a place; methods without their draft are left out.

        Raises:
            ValueError: a method is not known.
        """
        from .settings import Setting

        found: dict[str, Setting] = {}
        for name in methods:
            if name not in METHODS:
                raise ValueError(f"`methods`: {name!r} is not known: choose from {', '.join(METHODS)}.")
            method = METHODS[name]
            if method.needs is not None and method.needs not in self.drafts:
                continue
            if name == "assisted" and place.batch_size > 1:
                continue
            for temperature in place.temperatures:
                for length in lengths if method.takes_length else [None]:
                    for options in method.options:
                        setting = Setting(temperature=temperature, **options(length))
                        found[setting.name] = setting
        return list(found.values())


def bench(
    pair: Pair,
    places: Iterable[Place],
    methods: Iterable[str] = DEFAULT_METHODS,
    num_draft_tokens: Sequence[int | None] = (4, None),
    max_new_tokens: int = 64,
    repeats: int = 3,
    results: Path | None = None,
    progress: bool = True,
    raw: bool = False,
    suites: Mapping[str, Dataset] | None = None,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[tuple[str, Evaluation]]:
    """Evaluate a pair at each place: on built-in text, where no end token ends a text early, or on a suite.

    Args:
        methods: names in `METHODS`.
        num_draft_tokens: draft lengths, `None` for one chosen round by round.
        repeats: interleaved repeats.
        results: a folder with a file of results for each place. The same call continues them.
        raw: continue texts. Default: a target with a chat template is asked about them.
        suites: the rows of all suites among the places, by name, from `suites.questions`.
        minutes: time for all places together; each gets an equal part of what is left, and measures a sample.
        say: is told about a place of a suite that is left out: its prompts are too long, or memory does not suffice.

    Yields:
        Each place by its name, with its evaluation.

    Raises:
        ValueError: a name is not known, or a number out of range.
    """
    from .drafts import NamedDraft
    from .rivals import assisted, compiled
    from .run import evaluate
    from .runner import out_of_memory
    from .suites import CATEGORY, TURNS

    rivals = [compiled(pair.target)]
    if "draft" in pair.drafts:
        rivals.append(assisted(pair.target, NamedDraft("draft", "", pair.drafts["draft"], pair.draft_tokenizer)))
    tokenizers = {} if pair.draft_tokenizer is None else {"draft": pair.draft_tokenizer}
    ends: dict[str, Any] = (
        {} if pair.target.generation_config.eos_token_id is None else {"min_new_tokens": max_new_tokens}
    )
    places, deadline = list(places), math.inf if minutes is None else time.monotonic() + 60 * minutes
    for number, place in enumerate(places):
        sampling: dict[str, Any] = {"top_k": 0, "top_p": 1.0} if any(place.temperatures) else {}
        if place.suite is None:
            rows = _rows(prompts(pair.tokenizer, place.batch_size, place.context, raw))
            of_place = ends
        else:
            rows, of_place = (suites or {})[place.suite], {"prompt": TURNS, "category": CATEGORY}
            if minutes is not None:
                of_place["minutes"] = max(1e-3, (deadline - time.monotonic()) / 60 / (len(places) - number))
        settings = pair.settings(methods, num_draft_tokens, place)
        try:
            evaluation = evaluate(
                pair.target,
                pair.drafts,
                rows,
                raw=raw,
                tokenizer=pair.tokenizer,
                draft_tokenizers=tokenizers,
                settings=settings,
                max_new_tokens=max_new_tokens,
                batch_size=place.batch_size,
                repeats=repeats,
                rivals=rivals,
                skip_failing=True,
                results=None if results is None else file_of(results, place),
                progress=progress,
                **of_place,
                **sampling,
            )
        except (RuntimeError, ValueError) as error:  # go on with the other places
            told = str(error) if isinstance(error, ValueError) else out_of_memory(error)
            if place.suite is None or told is None:
                raise
            say(f"{place}: {told.rstrip('.')}.")
            continue
        yield str(place), evaluation


def _rows(ids: list[list[int]]):
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": ids})
    rows.info.dataset_name = "built-in text"
    return rows


def file_of(folder: Path, place: Place) -> Path:
    """The path of the results of a place."""
    if place.suite is not None:
        return folder / f"{place.suite.replace('/', '-')}-t{place.temperatures[0]:g}-c{place.batch_size}.jsonl"
    return folder / f"batch-{place.batch_size}-context-{place.context}.jsonl"


def prompts(tokenizer: PreTrainedTokenizerBase, count: int, length: int, raw: bool = False) -> list[list[int]]:
    """Prompts of `length` tokens from evenly spaced places of the built-in text, the same in each call.

    Raises:
        ValueError: the chat template and the question leave no room for a text.
    """
    from ..tokenizers.chat import around_a_turn, speaks_chat

    before: list[int] = []
    after: list[int] = []
    if speaks_chat(tokenizer) and not raw:
        before, after = around_a_turn(tokenizer)
        before += tokenizer(QUESTION, add_special_tokens=False).input_ids
    room = length - len(before) - len(after)
    if room < 1:
        raise ValueError(
            f"`context={length}`: the chat template and a question take {length - room} tokens. Give more, or texts without "
            "them by `raw=True`."
        )
    text = "\n".join(inspect.getsource(importlib.import_module(name)) for name in TEXT_MODULES)
    ids = tokenizer(text, verbose=False).input_ids
    step = max(1, (len(ids) - room) // count)
    firsts = [number * step + step // 2 for number in range(count)]  # not at the comments that a module begins with
    texts = ((ids * (1 + (first + room) // len(ids)))[first:][:room] for first in firsts)
    return [[*before, *text, *after] for text in texts]
