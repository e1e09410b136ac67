"""The command `hf-speculative check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..command.arguments import DTYPES, check_dtype, check_file, check_models, help_line, load_pair, numbers
from ..command.interrupts import ends_at_once
from ..command.terminal import quiet_transformers

# Nothing that imports torch: `--help` answers at once.


def check(
    model: Annotated[
        str | None,
        typer.Argument(help="Target, the model whose text you want: a Hub name or folder. Default: the embedded pair."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Argument(help=help_line("draft_model", also="A Hub name or folder. Default: none."))
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            help="Whether to try the draft, and what drafts without one, on text of the target. Without it, the answer is only "
            "whether the pair can work."
        ),
    ] = True,
    seconds: Annotated[float, typer.Option(help="To measure in, beside loading.")] = 60.0,
    batch: Annotated[
        str,
        typer.Option(
            help="Texts written side by side, one size or several with commas: each may have another best source."
        ),
    ] = "1,8",
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts that the target writes about, as for eval. Default: some built-in ones, code and prose."
        ),
    ] = None,
    column: Annotated[
        str, typer.Option("--field", help="The column with the prompts: texts, or lists of chat messages.")
    ] = "prompt",
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Check for sampling instead of greedy decoding. This matters if the vocabularies differ.",
        ),
    ] = False,
    dtype: Annotated[str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[
        str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ... Default: cuda if there is one.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Can this draft guess for this target, and is it worth it?

    Says how each model's cache forgets rejected guesses, and proves it by comparing logits. Says how the draft's tokens become
    the target's. Then compares the draft, and every source that needs none, with plain decoding on a few short texts, greedy
    and sampled: how much is accepted, and how much faster it is here. Exits with status 1 if the pair does not work.

    The embedded pair:  hf-speculative check

    Your own:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B

    No draft at hand:  hf-speculative check Qwen/Qwen3-8B

    On your own prompts, and longer:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B --prompts mine.jsonl --seconds 120

    For a server's load:  hf-speculative check Qwen/Qwen3-8B Qwen/Qwen3-0.6B --batch 16,32
    """
    check_dtype(dtype)
    check_models(MODEL=model, DRAFT_MODEL=draft_model)
    check_file("--prompts", prompts)
    sizes = numbers("--batch", batch, int)
    err = Console(stderr=True)
    with ends_at_once(), err.status("loading the models"):
        from transformers import PreTrainedModel

        from ..tokenizers.loading import tokenizer_beside
        from . import answer, screen

        quiet_transformers()
        texts = _prompts(prompts, column, err)
        target, draft, tokenizer, other = load_pair(
            model, draft_model, dtype, device, ("MODEL", "DRAFT_MODEL"), needs_draft=False
        )
    if draft is not None and not isinstance(draft, PreTrainedModel):
        raise ValueError(
            f"DRAFT_MODEL {draft_model}: give a model. Sources that need none are tried without being named."
        )
    own = tokenizer_beside(draft) or other or (tokenizer if draft is not None else None)
    found = answer.check(
        target,
        draft,
        tokenizer,
        own,
        do_sample=sample,
        measure=measure,
        seconds=seconds,
        prompts=texts,
        batch_sizes=sizes,
    )
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        screen.print_answer(Console(highlight=False), found)
    if not found:
        raise typer.Exit(1)


def _prompts(path: Path | None, column: str, console: Console) -> list | None:
    """The prompts of a file; a row without one is named and skipped."""
    if path is None:
        return None
    from ..measuring.journal import BadRow
    from ..measuring.rows import read_prompts

    prompts = []
    for row in read_prompts(path, column):
        if isinstance(row, BadRow):
            console.print(Text.assemble(("skipped", "yellow"), f" row {row.index}: {row.message}"))
        else:
            prompts.append(row)
    return prompts
