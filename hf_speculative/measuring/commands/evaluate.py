"""The command `hf-speculative eval`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ...call.option_table import DRAFTS, ROWS, checked
from ...command.checks import check_data, naming, numbers
from ...command.interrupts import STOPPED, ends_at_once
from ...command.loading import load_embedded, load_target, loadable
from ...command.settings import Machine, Reading, option, setting, target_option, with_drafting_options, with_settings
from ...command.terminal import loading
from ...reports import files

ADAPTIVE = "adaptive"
#: a list of draft lengths on a command line
LENGTHS = f"Several with commas; {ADAPTIVE}: chosen each round, by measured cost."
#: options that are keywords of `evaluate`
SAME = ("score", "references", "max_new_tokens", "batch_size", "seed")
#: how a report is written
FORMATS = "Markdown if it ends in .md, else an HTML page"


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    dataset: str = setting(..., "A file (.jsonl, .txt, .json, .csv, .tsv, .parquet), folder or Hub name.", check=check_data)
    model: str | None = target_option("Target", is_argument=False)
    draft_model: list[str] | None = option("draft_model", also="Repeat the option for several to compare.")
    reading: Reading = field(default_factory=Reading)
    num_draft_tokens: str = option("num_draft_tokens", default=f"4,{ADAPTIVE}", also=LENGTHS)
    prompt_lookup: str | None = option("prompt_lookup_num_tokens", "--prompt-lookup", also="Several with commas.")
    temperature: str = setting("0", "Temperatures, separated by commas; 0 is greedy decoding.")
    top_k: int | None = setting(None, "Sample only among the k likeliest tokens; 0 is off.", least=0)
    top_p: float | None = setting(None, "Sample the likeliest tokens, up to this sum; 1 is off.", least=0.0, most=1.0)
    max_new_tokens: int = setting(128, "The most tokens to generate for each prompt.", least=1)
    stop: list[str] | None = setting(None, "A text that ends a completion. Repeat the option for several.")
    grammar: str | None = option("grammar", also="Here a .json or .lark file, or the text of a grammar.")
    batch_size: int = setting(1, "Prompts decoded together.", least=1)
    seed: int = setting(0, "Random seed for sampling, the same for every setting.")
    score: str | None = setting(None, "A task score: exact_match, or your own as module:function.")
    references: str | None = setting(None, "What the score compares with: a column, or a Jinja template.")
    results: Path = setting(Path("eval.jsonl"), "File of results. The same command continues it.", check=files.check_output)
    report: Path | None = setting(None, f"Write a report to this file: {FORMATS}.", check=files.check_output)
    json_file: Path | None = setting(None, "Write all totals to this JSON file.", "--json", check=files.check_output)
    glossary: bool = setting(False, "Say below the tables what the figures mean.")
    machine: Machine = field(default_factory=Machine)


@with_drafting_options("num_draft_tokens", "prompt_lookup_num_tokens", several=True)
@with_settings(Options)
def eval_command(settings: Options, drafting: dict[str, Any]) -> None:
    """Evaluate drafts on your own prompts: which draft, at which draft length, how much faster, and is the text the same?

    Nothing to download but your data:  hf-speculative eval --dataset prompts.jsonl

    Which draft, which length?  hf-speculative eval --dataset data.jsonl --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B
    --draft-model Qwen/Qwen3-1.7B --num-draft-tokens 2,4,8,adaptive --prompt-lookup 10 --temperature 0,0.7 --report eval.html

    Without a draft model?  hf-speculative eval --dataset data.jsonl --model Qwen/Qwen3-8B --draft-model auto
    --assistant-early-exit 8

    Quality unchanged?  hf-speculative eval --dataset qa.jsonl --score exact_match --references answer

    Several GPUs, each with its own prompts:  accelerate launch -m hf_speculative eval --dataset data.jsonl ...

    Every setting decodes the same prompts as plain `generate`, in turn. You may stop at any time: the same command continues
    where it stopped. A row that cannot be used is recorded and skipped.
    """
    with ends_at_once():  # not above, since it imports torch: `--help` answers at once
        from ..plan import is_first_process
        from ..render import page, result_table, screen
        from ..run import evaluate_until_stopped

    err = Console(stderr=True, highlight=False)
    lengths = draft_lengths("--num-draft-tokens", settings.num_draft_tokens)
    temperatures = numbers("--temperature", settings.temperature, float)
    if settings.prompt_lookup is not None:
        drafting["prompt_lookup_num_tokens"] = numbers("--prompt-lookup", settings.prompt_lookup, int)
    named = {name: value for name, value in drafting.items() if ROWS[name].is_source}
    sources: dict[str, Any] = {n: value if isinstance(value, list) else [value] for n, value in named.items()}
    of_rows: dict[str, Any] = {"top_k": settings.top_k, "top_p": settings.top_p, "grammar": settings.grammar}
    of_rows |= {"stop_strings": settings.stop}
    with loading(err):
        target, drafts, tokenizer = _load(settings)
    evaluation, is_stopped = evaluate_until_stopped(
        target,
        drafts,
        settings.dataset,
        tokenizer=tokenizer,
        num_draft_tokens=lengths,
        temperatures=temperatures,
        options={name: value for name, value in drafting.items() if name not in sources},
        results=settings.results,
        **{name: getattr(settings, name) for name in SAME},
        **settings.reading.keywords,
        **sources,
        **{name: value for name, value in of_rows.items() if value is not None},
    )
    if is_stopped:
        err.print(Text(f"stopped; {settings.results} has what was measured so far, and the same command continues from there."))
    if not is_first_process():
        return
    screen.print_evaluation(Console(highlight=False), evaluation, settings.glossary)
    err.print(Text(f"results: {settings.results}"))
    if settings.json_file is not None:
        files.write(settings.json_file, json.dumps(evaluation.to_dict(), indent=1) + "\n")
    if settings.report is not None:
        page.write_report({"": evaluation}, result_table.markdown(evaluation), settings.report)
        err.print(Text(f"report: {settings.report}"))
    if is_stopped:
        raise typer.Exit(STOPPED)  # scripts have to see that the results are partial


def _load(settings: Options):
    from ...drafting.tables import holds_tables
    from ...models.loading import check_name

    names = settings.draft_model or []
    methods = [name for name in names if DRAFTS.is_method(name)]
    if settings.model is None and len(methods) < len(names):
        raise ValueError("--draft-model needs a --model: name one, or `--model embedded` for the embedded target.")
    if settings.model is None:
        target, draft, tokenizer = load_embedded(settings.machine)
        return target, methods or {"draft": draft}, tokenizer
    names = [loadable(name) for name in names]
    for name in names:
        if DRAFTS.is_method(name) or holds_tables(name):
            continue
        if DRAFTS.split(checked("draft_model", name))[1] is not None:
            raise ValueError(f"--draft-model {name}: several sources at once are not measured: give the option for each.")
        with naming("--draft-model", name):
            check_name(name)  # before the target takes minutes to load
    target, tokenizer = load_target(settings.model, settings.machine)
    return target, names or None, tokenizer


def draft_lengths(option: str, text: str) -> list[int | None]:
    """Parse a list of draft lengths; `None` is the adaptive length."""
    return numbers(option, text, lambda one: None if one.strip() == ADAPTIVE else int(one), also=f" or {ADAPTIVE}")
