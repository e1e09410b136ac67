"""The commands `hf-speculative check` and `audit`."""

import json
from dataclasses import dataclass, field as a_field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import track
from rich.text import Text

from ..command.checks import check_file, check_model, numbers
from ..command.loading import load_pair, load_target
from ..command.settings import ExactMachine, Machine, option, raw_setting, setting, target_option, with_settings
from ..command.terminal import loading
from .defaults import BATCH_SIZES, SECONDS


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("Target, the model whose text you want")
    draft_model: str | None = option("draft_model", also="A Hub name or folder. Default: none.", is_argument=True)
    measure: bool = setting(True, "Try drafts on text of the target; else, only say whether the pair can work.")
    seconds: float = setting(SECONDS, "To measure in, beside loading.")
    batch: str = setting(",".join(map(str, BATCH_SIZES)), "Texts written side by side, sizes with commas.")
    prompts: Path | None = setting(None, "File of prompts, as for eval. Default: built-in ones.", check=check_file)
    field: str = setting("prompt", "The column with the prompts: texts, or lists of chat messages.")
    raw: bool = raw_setting()
    grammar: str | None = option("grammar", also="Here a .json or .lark file, or the text of a grammar.")
    sample: bool = setting(False, "Check for sampling, which matters if the vocabularies differ.")
    machine: ExactMachine = a_field(default_factory=ExactMachine)
    json: bool = setting(False, "Print the answer as JSON.")


@with_settings(Options)
def check(settings: Options) -> None:
    """Can this draft guess for this target, and is it worth it?

    Says how each model's cache forgets rejected guesses, and proves it by comparing logits. Says how the draft's tokens become
    the target's. Then compares the draft, `auto`, prompt lookup and the target's own layers with plain decoding
    on a few short texts, greedy and sampled. It says how much is accepted, and how much faster it is here. Exits with status 1
    if the pair does not work.

    The embedded pair:  hf-speculative check

    Your own:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B

    No draft at hand:  hf-speculative check Qwen/Qwen3-8B

    On your own prompts, and longer:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B --prompts mine.jsonl --seconds 120

    What a schema brings:  hf-speculative check Qwen/Qwen3-8B --grammar schema.json

    For a server's load:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B --batch 16,32
    """
    sizes, err = numbers("--batch", settings.batch, int), Console(stderr=True)
    with loading(err):
        from transformers import PreTrainedModel

        from ..measuring.rows import read_prompts
        from ..tokenizers.loading import tokenizer_beside
        from . import answer, screen

        texts = None if settings.prompts is None else _usable(read_prompts(settings.prompts, settings.field), err)
        target, draft, tokenizer, other = load_pair(settings.model, settings.draft_model, settings.machine)
    if draft is not None and not isinstance(draft, PreTrainedModel):
        raise ValueError(f"DRAFT_MODEL {settings.draft_model}: give a model. Sources that need none are tried anyway.")
    own = tokenizer_beside(draft) or other or (tokenizer if draft is not None else None)
    options = {name: getattr(settings, name) for name in ("measure", "seconds", "raw", "grammar")}
    options |= {"do_sample": settings.sample, "prompts": texts, "batch_sizes": sizes}
    found = answer.check(target, draft, tokenizer, own, **options)
    if settings.json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        screen.print_answer(Console(highlight=False), found)
    if not found:
        raise typer.Exit(1)


@dataclass(frozen=True)
class AuditOptions:
    """Options of the command `audit`."""

    model: str = setting(..., "The model that wrote both texts: a Hub name or folder.", is_argument=True, check=check_model)
    first: Path = setting(..., "File of its texts and prompts, a row each, as for eval.", is_argument=True, check=check_file)
    second: Path = setting(..., "File of its texts decoded another way, in the same order.", is_argument=True, check=check_file)
    field: str = setting("text", "The column with the texts, in both files.")
    prompt: str = setting("prompt", "The column of FIRST with the prompts: texts, or lists of chat messages.")
    raw: bool = raw_setting()
    machine: Machine = a_field(default_factory=Machine)


@with_settings(AuditOptions)
def audit(settings: AuditOptions) -> None:
    """Where do two greedy texts of a model differ, and why: a tie within rounding, or a bug?

    The texts may be any two systems', and are tokenized here. The model reads each text before its first difference in its own
    number format and in float64. Exits with status 1 if rounding does not explain one of the differences.

    Two servers:  hf-speculative audit Qwen/Qwen3-0.6B plain.jsonl drafted.jsonl --dtype bfloat16
    """
    err = Console(stderr=True)
    with loading(err, "loading the model"):
        from ..measuring.rows import read_prompts
        from . import screen
        from .audit import audit_texts

        files = [(settings.first, settings.prompt), (settings.first, settings.field), (settings.second, settings.field)]
        prompts, first, second = (read_prompts(path, name) for path, name in files)
        if len(first) != len(second):
            raise ValueError(f"FIRST has {len(first)} rows and SECOND {len(second)}: give the same prompts in order.")
        model, tokenizer = load_target(settings.model, settings.machine)
    pairs = zip(prompts, first, second, strict=True)
    rows = {index: row for index, row in enumerate(pairs) if len(_usable([*row], err)) == len(row)}
    audits = audit_texts(model, tokenizer, rows.values(), settings.raw)
    found = dict(zip(rows, track(audits, "texts", len(rows), console=err, transient=True), strict=True))
    if not screen.print_audits(Console(highlight=False), tokenizer, found):
        raise typer.Exit(1)


def _usable(prompts: list[Any], console: Console) -> list[Any]:
    """The prompts; a row without one is named on the console and skipped."""
    from ..measuring.journal import BadRow

    for prompt in prompts:
        if isinstance(prompt, BadRow):
            console.print(Text.assemble(("skipped", "yellow"), f" row {prompt.index}: {prompt.message}"))
    return [prompt for prompt in prompts if not isinstance(prompt, BadRow)]
