"""Benchmarks: evaluations over suites, built-in text among them, one for each suite, temperature and batch size."""

import importlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.option_table import DRAFTS
from ..tokenizers.chat import around_a_turn, speaks_chat
from .calls import assisted, compiled
from .decoder import out_of_memory
from .methods import DEFAULT_METHODS, METHODS
from .results import Evaluation
from .run import evaluate_until_stopped
from .settings import NamedDraft, Setting
from .suites import CATEGORY, TURNS

#: modules of the standard library whose source is the built-in text
TEXT_MODULES = ("argparse", "typing", "inspect", "subprocess", "dataclasses", "ast")
#: the question to a chat model about that text
QUESTION = "Explain what this Python code does:\n\n"
#: the built-in text as a suite: `code/64` are prompts of 64 tokens
CODE = "code"


@dataclass(frozen=True)
class Place:
    """The place of an evaluation in a benchmark.

    Attributes:
        suite: its name.
        temperature: 0 is greedy.
        batch_size: prompts decoded together: the concurrency.
    """

    suite: str
    temperature: float = 0.0
    batch_size: int = 1

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"`batch_size={self.batch_size}`: give a number of 1 or more.")

    def __str__(self) -> str:
        return f"{self.suite}, T={self.temperature:g}, concurrency {self.batch_size}"

    @property
    def file_name(self) -> str:
        """The name of its file of results."""
        return f"{self.suite.replace('/', '-')}-t{self.temperature:g}-c{self.batch_size}.jsonl"


def places_of(suites: Iterable[str], batch_sizes: Iterable[int], temperatures: Iterable[float]) -> list[Place]:
    """Each suite at every temperature and batch size."""
    every = itertools.product(dict.fromkeys(suites), dict.fromkeys(temperatures), dict.fromkeys(batch_sizes))
    return [Place(*one) for one in every]


@dataclass
class Pair:
    """A target and its drafts.

    Attributes:
        drafts: by name; `draft` is that of assisted generation.
        draft_tokenizer: of `draft`, if its vocabulary is another.
    """

    target: PreTrainedModel
    drafts: dict[str, Any]
    tokenizer: PreTrainedTokenizerBase
    draft_tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def has_assistant(self) -> bool:
        """Whether there is a model for assisted generation."""
        return isinstance(self.drafts.get("draft"), PreTrainedModel)

    def settings(self, methods: Iterable[str], lengths: Iterable[int | None], place: Place) -> list[Setting]:
        """List the settings of `methods` at a place; methods without their draft are left out.

        Raises:
            ValueError: a method is not known.
        """
        found: dict[str, Setting] = {}
        for name, length in itertools.product(methods, lengths):
            if name not in METHODS:
                raise ValueError(f"`methods`: {name!r} is not known: choose from {', '.join(METHODS)}.")
            for options in self._options(name, length, place.batch_size):
                setting = Setting(temperature=place.temperature, **options)
                found[setting.name] = setting
        return list(found.values())

    def _options(self, method: str, length: int | None, batch_size: int) -> list[dict[str, Any]]:
        """The options of a method's settings."""
        if method in DRAFTS.methods:
            return [{"draft_model": method}]
        draft = "head" if method == "head" else "draft"
        if draft not in self.drafts or (method == "assisted" and (batch_size > 1 or not self.has_assistant)):
            return []
        if method == "assisted":
            return [{"rival": "assisted", "num_draft_tokens": length}]
        own = {"draft_model": draft, "num_draft_tokens": length}
        return [own] if method == draft else [{"rival": "plain, compiled"}, own | {"optimize": True}]


def bench(
    pair: Pair,
    suites: Mapping[str, Dataset],
    places: Sequence[Place],
    methods: Iterable[str] = DEFAULT_METHODS,
    num_draft_tokens: Sequence[int | None] = (4, None),
    max_new_tokens: int = 96,
    repeats: int = 3,
    results: Path | None = None,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
    **options: Any,
) -> Iterator[tuple[Place, Evaluation]]:
    """Evaluate a pair at each place.

    Args:
        suites: the rows of all suites among the places, by name, from `suites.questions` or `code`.
        methods: names in `METHODS`.
        num_draft_tokens: draft lengths, `None` for one chosen round by round.
        repeats: interleaved repeats.
        results: a folder with a file of results for each place. The same call continues them.
        minutes: time for all places together; each gets an equal part of what is left, and measures a sample.
        say: is told about a place that is left out: its prompts are too long, or memory does not suffice.
        **options: further keywords of `evaluate`, such as `raw`.

    Yields:
        Each place with its evaluation.

    Raises:
        ValueError: a method is not known.
        KeyboardInterrupt: Ctrl-C; what was measured of its place came before.
    """
    rivals = [compiled(pair.target)]
    if pair.has_assistant:
        rivals.append(assisted(pair.target, NamedDraft(pair.drafts["draft"], pair.draft_tokenizer)))
    tokenizers = {} if pair.draft_tokenizer is None else {"draft": pair.draft_tokenizer}
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    for number, place in enumerate(places):
        own = options | ({"top_k": 0, "top_p": 1.0} if place.temperature else {})
        if place.suite.startswith(f"{CODE}/"):
            own["limit"] = place.batch_size
            if pair.target.generation_config.eos_token_id is not None:  # no end token ends a text early
                own["min_new_tokens"] = max_new_tokens
        if deadline is not None:
            own["minutes"] = max(1e-3, (deadline - time.monotonic()) / 60 / (len(places) - number))
        settings = pair.settings(methods, num_draft_tokens, place)
        try:
            evaluation, is_stopped = evaluate_until_stopped(
                pair.target,
                pair.drafts,
                suites[place.suite],
                prompt=TURNS,
                category=CATEGORY,
                tokenizer=pair.tokenizer,
                draft_tokenizers=tokenizers,
                settings=settings,
                max_new_tokens=max_new_tokens,
                batch_size=place.batch_size,
                repeats=repeats,
                rivals=rivals,
                skip_failing=True,
                results=None if results is None else results / place.file_name,
                **own,
            )
        except (RuntimeError, ValueError) as error:  # go on with the other places
            told = str(error) if isinstance(error, ValueError) else out_of_memory(error)
            if told is None:
                raise
            say(f"{place}: {told.rstrip('.')}.")
        else:
            yield place, evaluation
            if is_stopped:
                raise KeyboardInterrupt


def code(tokenizer: PreTrainedTokenizerBase, names: Iterable[str], count: int, raw: bool = False) -> dict[str, Dataset]:
    """Suites of built-in text by name, `code/64` for prompts of 64 tokens, see `prompts`."""
    suites = {}
    for name in names:
        ids = prompts(tokenizer, count, int(name.removeprefix(f"{CODE}/")), raw)
        suites[name] = Dataset.from_list([{TURNS: one, CATEGORY: ""} for one in ids])
        suites[name].info.dataset_name = name
    return suites


def prompts(tokenizer: PreTrainedTokenizerBase, count: int, length: int, raw: bool = False) -> list[list[int]]:
    """Prompts of `length` tokens from evenly spaced places of the built-in text, the same in each call.

    Raises:
        ValueError: the chat template and the question leave no room for a text.
    """
    before: list[int] = []
    after: list[int] = []
    if speaks_chat(tokenizer) and not raw:
        before, after = around_a_turn(tokenizer)
        before += tokenizer(QUESTION, add_special_tokens=False).input_ids
    room = length - len(before) - len(after)
    if room < 1:
        takes = f"the chat template and a question take {length - room} tokens"
        raise ValueError(f"`context={length}`: {takes}: give more, or `raw=True`.")
    text = "\n".join(inspect.getsource(importlib.import_module(name)) for name in TEXT_MODULES)
    ids = tokenizer(text, verbose=False).input_ids
    step = max(1, (len(ids) - room) // count)
    firsts = [number * step + step // 2 for number in range(count)]  # not at the comments that a module begins with
    texts = ((ids * (1 + (first + room) // len(ids)))[first:][:room] for first in firsts)
    return [[*before, *text, *after] for text in texts]
