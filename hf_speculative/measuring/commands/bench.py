"""The command `hf-speculative bench`."""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ...call.option_table import DRAFTS, checked
from ...command.checks import numbers
from ...command.interrupts import STOPPED, ends_at_once
from ...command.loading import load_pair
from ...command.settings import Machine, option, raw_setting, setting, target_option, with_settings
from ...command.terminal import loading
from ...reports import files
from ..methods import DEFAULT_METHODS, METHODS
from .evaluate import ADAPTIVE, FORMATS, LENGTHS, draft_lengths

# Nothing that imports torch: `--help` answers at once.
if TYPE_CHECKING:
    from ..bench import Pair, Place
    from ..render.suites import Run
    from ..results import Evaluation


#: the heading of options about suites
SUITES = "Suites"
SUITE = (
    "Questions instead of built-in text: a suite, as NAME, NAME/CONFIG or NAME=FILE, or a FILE with a column turns or "
    "prompt. Repeat the option for several."
)
COMPARE = "A file of --json to show beside this run. Repeat the option for several. Without --suite, only show."


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("Target", is_argument=False)
    draft_model: str | None = option("draft_model", also="A Hub name or folder.")
    draft_tokens: str = option("num_draft_tokens", default=f"4,{ADAPTIVE}", also=LENGTHS)
    suite: list[str] | None = setting(None, SUITE, panel=SUITES)
    num_prompts: int = setting(80, "Conversations of each suite: a sample.", least=1, panel=SUITES)
    compare: list[Path] | None = setting(None, COMPARE, panel=SUITES)
    minutes: float | None = setting(None, "Time to measure: figures are of a sample.", above=0.0)
    by: str | None = setting(None, "Who measured, for a table to contribute.")
    optimize: bool = setting(False, "Decode on compiled passes and by our kernel, plainly too. Default: eager.")
    batch: str = setting("1", "Prompts decoded together: the concurrency.")
    context: str = setting("64", "Length of each prompt of built-in text, in tokens.")
    temperature: str = setting("0", "0 is greedy.")
    new_tokens: int | None = setting(None, "Tokens for each prompt. Default: 96; of a suite, 512 at most.", least=2)
    repeats: int | None = setting(None, "Interleaved repeats, for quartiles. Default: 3; of a suite, 1.", least=1)
    methods: str = setting(",".join(DEFAULT_METHODS), f"Of: {', '.join(METHODS)}, where the pair has the draft.")
    raw: bool = raw_setting()
    machine: Machine = field(default_factory=Machine)
    results: Path | None = setting(None, "Folder of results, one file for each cell. The same command continues them.")
    report: Path | None = setting(None, f"Write all tables to this file: {FORMATS}.", check=files.check_output)
    json_file: Path | None = setting(None, "Write all figures to this JSON file.", "--json", check=files.check_output)
    glossary: bool = setting(False, "Say below the tables what the figures mean.")

    def __post_init__(self):
        if self.suite and self.context != "64":
            raise ValueError("--context has no effect beside --suite: leave it out.")
        if self.num_prompts != 80 and not self.suite:
            raise ValueError("--num-prompts has no effect without --suite: leave it out.")
        if self.repeats == 1 and not self.suite:
            raise ValueError("--repeats 1 has no spread: give 2 or more.")


@with_settings(Options)
def bench(settings: Options) -> None:
    """Measure how fast a pair decodes, against plain `generate` and transformers' assisted generation.

    Nothing to download:  hf-speculative bench

    Your own pair:  hf-speculative bench --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --batch 1,4

    Draft lengths, compiled as well:  hf-speculative bench --draft-tokens 2,4,6 --methods draft,optimized

    An HTML page and a JSON file:  hf-speculative bench --batch 1,2,4,8 --report bench.html --json bench.json

    The papers' tables:  hf-speculative bench --suite humaneval --suite mt-bench --batch 1,8 --temperature 0,1 --json mine.json

    Lists are written with commas: each suite, or length of built-in text, is measured at every temperature and batch size. All
    methods decode the same prompts in turn, after a warm-up that does not count. Ctrl-C keeps what was measured.
    """
    with ends_at_once():  # not above, since it imports torch
        from ...generation import attach
        from .. import bench as benchmarks
        from ..render import suites as tables
        from ..suites import questions

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    runs = [tables.load(path) for path in settings.compare or ()]
    if runs and not settings.suite:
        options = ("model", "draft_model", "results", "minutes", "json_file")
        if idle := ", ".join(f"`{name}`" for name in options if getattr(settings, name) is not None):
            raise ValueError(f"--compare without --suite only shows its files: leave {idle} out, or name a --suite.")
        _show(settings, out, runs, {})
        return
    batches = numbers("--batch", settings.batch, int)
    temperatures = numbers("--temperature", settings.temperature, float)
    lengths = draft_lengths("--draft-tokens", settings.draft_tokens)
    lengths = [n if n is None else checked("num_draft_tokens", n) for n in lengths]
    with loading(err, "reading the suites"):
        samples = [questions(name, settings.num_prompts) for name in settings.suite or ()]
    suites = {rows.info.dataset_name: rows for rows in samples}
    if len(suites) < len(samples):
        raise ValueError(f"--suite: two have one name, of {', '.join(suites)}: rename a file, or give each once.")
    names = suites or [f"{benchmarks.CODE}/{length}" for length in numbers("--context", settings.context, int)]
    places = benchmarks.places_of(names, batches, temperatures)
    with loading(err):
        pair = _pair(settings)
        if settings.optimize:
            attach(pair.target, optimize=True)
    suites = suites or benchmarks.code(pair.tokenizer, names, max(batches), settings.raw)
    found: dict[Place, Evaluation] = {}
    is_stopped = False
    if settings.results is not None:
        files.make_folder("--results", settings.results)
    measured = benchmarks.bench(
        pair,
        suites,
        places,
        settings.methods.split(","),
        lengths,
        settings.new_tokens or (512 if settings.suite else 96),
        settings.repeats or (1 if settings.suite else 3),
        settings.results,
        raw=settings.raw,
        minutes=settings.minutes,
        say=functools.partial(err.print, markup=False),
    )
    try:
        for place, evaluation in measured:
            found[place] = evaluation
    except KeyboardInterrupt:
        is_stopped = True
    if not found:
        raise typer.Exit(STOPPED if is_stopped else 1)
    notes = [rows.info.description for rows in suites.values() if rows.info.description]
    run = tables.as_run(found, notes, settings.by)
    _show(settings, out, [run, *runs], found)
    if settings.json_file is not None:
        files.write(settings.json_file, json.dumps(run, indent=1) + "\n")
    if is_stopped:
        err.print("stopped: this is what was measured so far.")
        raise typer.Exit(STOPPED)


def _show(settings: Options, out: Console, runs: "list[Run]", found: "dict[Place, Evaluation]") -> None:
    from ..render import page, screen, suites

    screen.print_suites(out, runs, found, settings.glossary)
    if settings.report is not None:
        page.write_report(found, suites.text(runs), settings.report)


def _pair(settings: Options) -> "Pair":
    from transformers import PreTrainedModel

    from ...embedded import HEAD
    from ...models.loading import load_model
    from ..bench import Pair
    from ..settings import NamedDraft

    asked = (settings.model, settings.draft_model, settings.machine)
    target, draft, tokenizer, draft_tokenizer = load_pair(*asked, needs_draft=True)
    head = {} if settings.model is not None else {"head": load_model(HEAD, dtype=target.dtype).to(target.device)}
    if not isinstance(draft, (str, PreTrainedModel)):  # tables, or several sources, have no name of their own
        draft = NamedDraft(draft, draft_tokenizer, settings.draft_model or "")
    own = {} if DRAFTS.is_method(draft) else {"draft": draft}
    return Pair(target, {**own, **head}, tokenizer, draft_tokenizer)
