"""The command `hf-speculative bench`."""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ...call.option_table import DRAFTS, checked
from ...command.arguments import (
    Machine,
    check_models,
    check_outputs,
    load_pair,
    numbers,
    option,
    raw_setting,
    target_option,
)
from ...command.interrupts import STOPPED, ends_at_once
from ...command.settings import setting, with_settings
from ...command.terminal import quiet_transformers
from ...reports import files
from ..bench import DEFAULT_METHODS, METHODS, sweep
from .evaluate import ADAPTIVE, LENGTHS, draft_lengths

# Nothing that imports torch: `--help` answers at once.
if TYPE_CHECKING:
    from ..bench import Pair


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("Target", is_argument=False)
    draft_model: str | None = option("draft_model", also="A Hub name or folder.")
    draft_tokens: str = option("num_draft_tokens", default=f"4,{ADAPTIVE}", also=LENGTHS)
    batch: str = setting("1", "Prompts decoded together.")
    context: str = setting("64", "Length of each prompt, in tokens.")
    temperature: str = setting("0", "0 is greedy.")
    grid: bool = setting(
        False, "Measure all combinations of the lists. Default: one list at a time, the others at their first value."
    )
    new_tokens: int = setting(64, "Tokens generated for each prompt.", least=2)
    repeats: int = setting(3, "Interleaved repeats, for medians with quartiles.", least=2)
    methods: str = setting(
        ",".join(DEFAULT_METHODS), f"Of: {', '.join(METHODS)}. Those that the pair has no draft for are left out."
    )
    raw: bool = raw_setting()
    machine: Machine = field(default_factory=Machine)
    results: Path | None = setting(
        None, "Folder of results, one file for each batch size and context. The same command continues them."
    )
    report: Path | None = setting(
        None, "Write all tables to this file: Markdown if it ends in .md, else one HTML page."
    )
    json_file: Path | None = setting(None, "Write all figures to this JSON file.", "--json")
    glossary: bool = setting(False, "Say below the tables what the figures mean.")

    def __post_init__(self):
        check_models(model=self.model, draft_model=self.draft_model)
        check_outputs(json=self.json_file, report=self.report)


@with_settings(Options)
def bench(settings: Options) -> None:
    """Measure how fast a pair decodes, against plain `generate` and transformers' assisted generation.

    Nothing to download:  hf-speculative bench

    Your own pair:  hf-speculative bench --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --batch 1,4

    Draft lengths, compiled as well:  hf-speculative bench --draft-tokens 2,4,6 --methods draft,compiled

    An HTML page and a JSON file:  hf-speculative bench --batch 1,2,4,8 --report bench.html --json bench.json

    Lists are written with commas. The first value of --batch, --context and --temperature is the base. Each further one is
    measured with the others at their base; --grid measures all combinations. All methods decode the same prompts in turn, after
    a warm-up that does not count. Ctrl-C keeps what was measured.
    """
    with ends_at_once():  # not above, since it imports torch
        from .. import bench as benchmarks
        from ..render import page, screen
        from ..results import Evaluation

    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    quiet_transformers()
    places = sweep(
        numbers("--batch", settings.batch, int),
        numbers("--context", settings.context, int),
        numbers("--temperature", settings.temperature, float),
        settings.grid,
    )
    lengths = [
        n if n is None else checked("num_draft_tokens", n)
        for n in draft_lengths("--draft-tokens", settings.draft_tokens)
    ]
    methods, new_tokens, repeats = settings.methods.split(","), settings.new_tokens, settings.repeats
    with ends_at_once(), err.status("loading the models"):
        pair = _pair(settings)
    found: dict[str, Evaluation] = {}
    is_stopped = False
    with ExitStack() as stack:
        folder = settings.results or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files.make_folder("--results", folder)
        try:
            found |= benchmarks.bench(pair, places, methods, lengths, new_tokens, repeats, folder, raw=settings.raw)
        except KeyboardInterrupt:
            is_stopped = True
        for place in places if is_stopped else ():
            path = benchmarks.file_of(folder, place)
            if path.exists():
                found[str(place)] = Evaluation.load(path)
    if not found:
        raise typer.Exit(STOPPED)
    screen.print_evaluation(out, found, settings.glossary)
    if settings.report is not None:
        page.write_report(found, settings.report)
    if settings.json_file is not None:
        files.write(settings.json_file, json.dumps(page.to_dict(found), indent=1) + "\n")
    if is_stopped:
        err.print("stopped: this is what was measured so far.")
        raise typer.Exit(STOPPED)


def _pair(settings: Options) -> "Pair":
    from ...embedded import HEAD
    from ...models.loading import load_model
    from ..bench import Pair

    target, draft, tokenizer, draft_tokenizer = load_pair(settings.model, settings.draft_model, settings.machine)
    head = {} if settings.model is not None else {"head": load_model(HEAD, dtype=target.dtype).to(target.device)}
    own = {} if DRAFTS.is_method(draft) else {"draft": draft}
    return Pair(target, {**own, **head}, tokenizer, draft_tokenizer)
