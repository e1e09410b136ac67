"""The command `hf-speculative`."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from . import embedded, theory
from .generation import generate as speculative_generate
from .statistics import Statistics, record

app = typer.Typer(
    help="Speculative decoding for transformers: exact, batched, measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
DEMO_PROMPTS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@app.callback()
def root() -> None:
    """Speculative decoding for transformers: exact, batched, measured."""


class PromptError(ValueError):
    """One line of a prompt file that cannot be used."""


def read_prompts(path: Path, column: str) -> Iterator[str | PromptError]:
    """The prompts of a .txt, .jsonl or .jsonl.gz file, a line each; a broken line comes as a `PromptError`."""
    opener = gzip.open if path.suffix == ".gz" else open
    is_json = ".jsonl" in path.suffixes
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if not is_json:
                yield line.rstrip("\n")
                continue
            try:
                prompt = json.loads(line)[column]
                if not isinstance(prompt, str) or not prompt:
                    raise TypeError(f"{prompt!r} is not a text")
                yield prompt
            except KeyError:
                yield PromptError(f"{path.name}, line {number}: no field {column!r}; choose one with --field")
            except (json.JSONDecodeError, TypeError) as error:
                yield PromptError(f"{path.name}, line {number}: {error}")


@dataclass
class Comparison:
    """Plain against speculative decoding on the same prompts. Times are seconds of `generate` calls, warm-up apart."""

    num_prompts: int = 0
    num_identical: int = 0
    num_plain_tokens: int = 0
    plain_seconds: float = 0.0
    num_plain_steps: int = 0
    speculative_seconds: float = 0.0
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def speedup(self) -> float:
        """Ratio of tokens per second, each over its own tokens."""
        return self.tokens_per_second("speculative") / self.tokens_per_second("plain")

    def tokens_per_second(self, which: str) -> float:
        if which == "plain":
            return self.num_plain_tokens / self.plain_seconds
        return self.statistics.num_new_tokens / self.speculative_seconds

    def predicted_speedup(self, num_draft_tokens: int) -> float:
        """Leviathan et al. 2023, Theorem 3.8, from the measured acceptance rate and the measured cost of a draft step."""
        stats = self.statistics
        draft_step = stats.seconds["draft"] / max(1, stats.num_draft_forwards)
        cost = draft_step / (self.plain_seconds / self.num_plain_steps)
        return theory.walltime_factor(stats.token_acceptance_rate, num_draft_tokens, cost)

    def to_dict(self, num_draft_tokens: int, sampled: bool) -> dict[str, Any]:
        statistics = self.statistics.to_dict()
        del statistics["rows"]
        return {
            "num_prompts": self.num_prompts,
            "plain": {"seconds": self.plain_seconds, "tokens_per_second": self.tokens_per_second("plain")},
            "speculative": {
                "seconds": self.speculative_seconds,
                "tokens_per_second": self.tokens_per_second("speculative"),
            },
            "speedup": self.speedup,
            "predicted_speedup": self.predicted_speedup(num_draft_tokens),
            "num_identical": None if sampled else self.num_identical,
            "statistics": statistics,
        }


@contextmanager
def _clean_errors() -> Iterator[None]:
    """What a user can mend is a message, not a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), str(error)))
        raise typer.Exit(2) from error


@app.command()
def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts. Without any: --prompts, or standard input.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A file of prompts: .txt (a line each), .jsonl, .jsonl.gz.")
    ] = None,
    column: Annotated[
        str, typer.Option("--field", help="The field of a .jsonl line that holds the prompt.")
    ] = "prompt",
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft: a Hub name or folder.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="Tokens to draft a round.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each prompt.")] = 96,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 is greedy decoding; above it, tokens are sampled.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k likeliest tokens only; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample from the likeliest p of the mass only.")] = 1.0,
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Sample exactly the tokens that plain decoding samples under the seed."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 1,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; by default cuda where there is one.")] = "",
    show_text: Annotated[
        bool | None, typer.Option(help="Print the texts; by default for a handful of prompts.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON line for each prompt, then one with the totals.")
    ] = False,
) -> None:
    """Generate text with a draft and without, side by side.

    Accepted draft tokens are coloured; then come time, tokens per second, acceptance, and what theory predicts.

    Try it, nothing to download:  hf-speculative generate "def main():"

    Your own pair:  hf-speculative generate --model Qwen/Qwen2.5-7B --draft-model Qwen/Qwen2.5-0.5B "Once upon a time"

    A file of prompts:  hf-speculative generate --prompts HumanEval.jsonl.gz --batch-size 8
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    transformers_logging.set_verbosity_error()
    with _clean_errors():
        if dtype not in DTYPES:
            raise ValueError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}.")
        if temperature == 0 and (top_k or top_p < 1 or reproducible):
            raise ValueError("--top-k, --top-p and --reproducible are for sampling: give a --temperature above 0.")
        source = _prompt_source(prompt, prompts, column, embedded_pair=model is None)
        pair = _load(model, draft_model, DTYPES[dtype], device)
        total = sum(1 for p in source() if isinstance(p, str))
        if total == 0:
            raise ValueError("no prompt to work on: every line is empty or broken.")
    sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p} if temperature else {}
    run = _Run(
        *pair,
        seed=seed,
        kwargs={"do_sample": False, "max_new_tokens": max_new_tokens} | sampling,
        speculative_kwargs={"num_draft_tokens": num_draft_tokens} | ({"reproducible": True} if reproducible else {}),
    )
    show = total <= 4 if show_text is None else show_text
    comparison = Comparison()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with _clean_errors(), Progress(*columns, console=err, transient=True, disable=total <= batch_size) as progress:
            task = progress.add_task("prompts", total=total)
            run.warm_up(next(p for p in source() if isinstance(p, str)))
            remaining = source()
            while batch := list(islice(_without_broken(remaining, err), batch_size)):
                for text, origin in zip(batch, run.compare(batch, comparison), strict=True):
                    if as_json:
                        print(json.dumps({"prompt": text, **origin["json"]}), flush=True)
                    elif show:
                        out.print(Text(text, style="dim"), origin["text"], Text("\n"), sep="")
                progress.update(task, advance=len(batch))
    except KeyboardInterrupt:
        err.print(f"stopped after {comparison.num_prompts} of {total} prompts; this is what they gave:")
    if comparison.num_prompts == 0:
        raise typer.Exit(1)
    is_exact = temperature == 0 or reproducible
    if as_json:
        print(json.dumps({"total": comparison.to_dict(num_draft_tokens, sampled=not is_exact)}), flush=True)
    else:
        _print_table(out, comparison, num_draft_tokens, is_exact)


def _without_broken(prompts: Iterator[str | PromptError], console: Console) -> Iterator[str]:
    for prompt in prompts:
        if isinstance(prompt, PromptError):
            console.print(f"[yellow]skipped[/] {prompt}")
        else:
            yield prompt


def _prompt_source(given: list[str] | None, path: Path | None, column: str, embedded_pair: bool):
    """A function that starts over on the prompts each time it is called."""
    if given and path:
        raise ValueError("prompts as arguments and --prompts are two sources: give one.")
    if path is not None:
        if not path.is_file():
            raise ValueError(f"--prompts {path}: no such file.")
        if not {".txt", ".jsonl"} & set(path.suffixes):
            raise ValueError(f"--prompts {path}: a .txt, .jsonl or .jsonl.gz file is needed.")
        return lambda: read_prompts(path, column)
    if not given and not sys.stdin.isatty():
        given = [sys.stdin.read()]
    if not given or not any(given):
        if not embedded_pair:
            raise ValueError("no prompt: give one as an argument, on standard input, or a file with --prompts.")
        given = list(DEMO_PROMPTS)
    return lambda: iter(given)


def _load(model: str | None, draft_model: str | None, dtype: torch.dtype, device: str):
    if (model is None) != (draft_model is None):
        raise ValueError("--model and --draft-model go together: give both, or none for the embedded pair.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if model is None or draft_model is None:
        target, draft, tokenizer = embedded.embedded_pair(dtype=dtype)
    else:
        target, draft = (AutoModelForCausalLM.from_pretrained(name, dtype=dtype) for name in (model, draft_model))
        tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return target.to(device).eval(), draft.to(device).eval(), tokenizer


@dataclass
class _Run:
    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    seed: int
    kwargs: dict[str, Any]
    speculative_kwargs: dict[str, Any]

    def warm_up(self, prompt: str) -> None:
        inputs = self._inputs([prompt])
        short = self.kwargs | {"max_new_tokens": 8}
        self.target.generate(**inputs, **short)
        speculative_generate(self.target, **inputs, **short, draft_model=self.draft, **self.speculative_kwargs)

    def compare(self, prompts: list[str], comparison: Comparison) -> list[dict[str, Any]]:
        """Both ways on one batch, added to `comparison`; for each prompt its coloured text and its JSON fields."""
        inputs = self._inputs(prompts)
        width = inputs["input_ids"].shape[1]
        plain, plain_seconds = self._timed(self.target.generate, inputs)
        with record() as statistics:
            output, seconds = self._timed(
                lambda **kwargs: speculative_generate(self.target, **kwargs, return_dict_in_generate=True),
                inputs | {"draft_model": self.draft} | self.speculative_kwargs,
            )
        comparison.num_prompts += len(prompts)
        comparison.plain_seconds += plain_seconds
        comparison.speculative_seconds += seconds
        comparison.num_plain_steps += plain.shape[1] - width
        comparison.statistics += statistics
        results = []
        for row, counts in enumerate(output.statistics.rows):
            new = output.sequences[row, width : width + counts.num_new_tokens].tolist()
            expected = self._until_end(plain[row, width:].tolist())
            comparison.num_plain_tokens += len(expected)
            comparison.num_identical += new == expected
            text = Text()
            for token, from_draft in zip(new, output.from_draft[row].tolist(), strict=False):
                text.append(self.tokenizer.decode([token]), style="green" if from_draft else "bold")
            as_json = {"text": self.tokenizer.decode(new), "identical": new == expected, "statistics": counts.to_dict()}
            results.append({"text": text, "json": as_json})
        return results

    def _inputs(self, prompts: list[str]) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer(prompts, return_tensors="pt", padding=True).to(self.target.device)
        return {"input_ids": encoded.input_ids, "attention_mask": encoded.attention_mask}

    def _timed(self, function, kwargs: dict[str, Any]):
        set_seed(self.seed)
        start = time.perf_counter()
        result = function(**kwargs, **self.kwargs, pad_token_id=self.tokenizer.pad_token_id)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    def _until_end(self, tokens: list[int]) -> list[int]:
        """Plain output without the padding after its end token."""
        end = self.target.generation_config.eos_token_id
        ends = set(end) if isinstance(end, list) else {end}
        first = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
        return tokens[: first + 1]


def _print_table(console: Console, comparison: Comparison, num_draft_tokens: int, is_exact: bool) -> None:
    stats = comparison.statistics
    table = Table(
        title=f"{comparison.num_prompts} prompts, {num_draft_tokens} draft tokens a round", title_justify="left"
    )
    table.add_column("")
    for name in ("plain", "speculative"):
        table.add_column(name, justify="right")
    table.add_row("time", f"{comparison.plain_seconds:.2f} s", f"{comparison.speculative_seconds:.2f} s")
    table.add_row("new tokens", str(comparison.num_plain_tokens), str(stats.num_new_tokens))
    speeds = [f"{comparison.tokens_per_second(which):.1f}" for which in ("plain", "speculative")]
    table.add_row("tokens per second", *speeds)
    table.add_row("target passes", str(comparison.num_plain_steps), str(stats.num_target_forwards))
    table.add_section()
    table.add_row("speedup", "1.00x", f"[bold]{comparison.speedup:.2f}x[/]")
    table.add_row("predicted by theory", "", f"{comparison.predicted_speedup(num_draft_tokens):.2f}x")
    table.add_row("draft tokens accepted", "", f"{stats.draft_acceptance_rate:.1%}")
    table.add_row("mean acceptance length", "", f"{stats.mean_acceptance_length:.2f}")
    console.print(table)
    console.print("[green]green[/]: draft tokens the target accepted; [bold]bold[/]: tokens the target added.")
    console.print(
        "Mean acceptance length counts the token that the target adds. Prediction: Leviathan et al., Theorem 3.8."
    )
    if is_exact:
        same, total = comparison.num_identical, comparison.num_prompts
        console.print(f"Identical to plain decoding: [bold]{same} of {total}[/] texts.")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
