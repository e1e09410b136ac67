"""The command `hf-speculative generate`."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ...call.option_table import DRAFTS, ROWS
from ...command.interrupts import STOPPED
from ...command.loading import load_pair
from ...command.prompts import built_in_prompts
from ...command.settings import ExactMachine, option, raw_setting, setting, target_option, with_drafting_options, with_settings
from ...command.terminal import loading

#: the most prompts whose texts are shown by default
FEW = 4
#: the least number of timings with the default number of repeats
ENOUGH = 3


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    prompt: list[str] | None = setting(None, "Texts to continue. Default: standard input.", is_argument=True)
    demo: bool = setting(False, "Show three answers of a chat model, plain and speculative side by side.")
    model: str | None = target_option("Target, the model whose text you want", is_argument=False)
    draft_model: str | None = option("draft_model", also="A Hub name or folder.")
    num_draft_tokens: int | None = option("num_draft_tokens")
    max_new_tokens: int = setting(96, "How many tokens to generate for each prompt, at most.", least=1)
    temperature: float = setting(0.0, "0 takes the likeliest token (greedy); above 0, tokens are sampled.", least=0.0)
    top_k: int = setting(0, "Sample only among the k likeliest tokens; 0 is off.", least=0)
    top_p: float = setting(1.0, "Sample the likeliest tokens, up to this sum; 1 is off.", least=0.0, most=1.0)
    grammar: str | None = option("grammar", also="Here a .json or .lark file, or the text of a grammar.")
    seed: int = setting(0, "Random seed for sampling: the same seed gives the same texts again.")
    batch_size: int = setting(1, "How many prompts are decoded together.", least=1)
    repeats: int | None = setting(
        None,
        "How often each prompt is decoded both ways, to tell a speedup from noise. Default: as often as gives "
        f"{ENOUGH} timings, {ENOUGH} times for a single prompt.",
        least=1,
    )
    machine: ExactMachine = dataclasses.field(default_factory=ExactMachine)
    show_text: bool | None = setting(None, f"Whether to print the texts. Default: for up to {FEW} prompts.")
    raw: bool = raw_setting()
    json: bool = setting(False, "Print a JSON line for each prompt, then one with the totals.")
    glossary: bool = setting(False, "Say below the table what the figures mean.")


@with_drafting_options("num_draft_tokens")
@with_settings(Options)
def generate(context: typer.Context, settings: Options, drafting: dict[str, Any]) -> None:
    """Generate text with a draft and without, and compare.

    The text appears as it is generated, with the draft tokens that the target accepted in colour. Then both ways decode the
    same prompts in turn. A table says how long they took, how many guesses were accepted, and how much faster it was.

    Try it, nothing to download:  hf-speculative generate "def main():"

    Your own pair:  hf-speculative generate --model Qwen/Qwen2.5-7B --draft-model Qwen/Qwen2.5-0.5B "Once upon a time"

    Without a draft model:  hf-speculative generate --model Qwen/Qwen2.5-7B "Once upon a time"

    A chat model of 135 million weights:  hf-speculative generate --model smollm2 "What is a hash table?"

    Ctrl-C ends it early and shows what was measured so far.
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    if settings.demo:
        _show_demo(context, settings, out, err)
        return
    temperature, draft_model = settings.temperature, settings.draft_model
    sampling = {"top_k": settings.top_k, "top_p": settings.top_p}
    if temperature == 0 and (sampling != {"top_k": 0, "top_p": 1.0} or drafting.get("reproducible") is True):
        raise ValueError("--top-k, --top-p and --reproducible are for sampling: give a --temperature above 0.")
    with loading(err, "importing torch and transformers"):
        from ...tokenizers.chat import speaks_chat
        from ..comparison import Texts
        from ..render import screen
        from ..run import evaluate_until_stopped
        from ..settings import NamedDraft, Setting
        from .prompts import given_prompts
    names_source = any(ROWS[name].is_source for name in drafting)
    if settings.model is not None and draft_model is None and not names_source:
        draft_model = "auto"
    if draft_model is not None and DRAFTS.is_method(draft_model):
        drafting["draft_model"], names_source = draft_model, True
    elif draft_model is not None or not names_source:
        drafting["draft_model"] = "draft"
    setting = Setting(num_draft_tokens=settings.num_draft_tokens, temperature=temperature, **drafting)
    prompts = given_prompts(settings.prompt)
    with loading(err):
        asked = (settings.model, draft_model, settings.machine)
        target, draft, tokenizer, other = load_pair(*asked, needs_draft=not names_source, head=True)
    if not prompts:
        err.print("No prompt was given: two built-in ones are used.")
        prompts = list(built_in_prompts(speaks_chat(tokenizer) and not settings.raw)[:2])
    total, batch_size = len(prompts), settings.batch_size
    repeats = settings.repeats or math.ceil(ENOUGH / math.ceil(total / batch_size))
    drafts = {} if draft is None else {"draft": NamedDraft(draft, other)}
    options: dict[str, Any] = {"seed": settings.seed, "raw": settings.raw, "max_new_tokens": settings.max_new_tokens}
    options |= {"grammar": settings.grammar} if settings.grammar is not None else {}
    options |= sampling if temperature else {}
    texts = Texts(target, drafts, tokenizer, setting, **options)
    ending = "\n" if texts.is_chat else ""
    shows = not settings.json and (total <= FEW if settings.show_text is None else settings.show_text)
    streams = shows and batch_size == 1
    if streams and out.is_terminal:
        out.print(screen.MEANING)
    for number, prompt in enumerate(prompts if streams else ()):
        try:
            screen.print_text(out, f"{prompt}{ending}", texts.stream(prompt, number * repeats))
        except (ValueError, RuntimeError, IndexError) as error:  # of this prompt; go on with the others
            err.print(Text.assemble(("skipped", "yellow"), f" {prompt[:40]!r}: {error}"))
    evaluation, is_stopped = evaluate_until_stopped(
        target,
        drafts,
        prompts,
        tokenizer=tokenizer,
        settings=[setting],
        batch_size=batch_size,
        repeats=repeats,
        **options,
    )
    totals, plain = evaluation.totals(setting), evaluation.rows(setting.baseline)
    for index, row in evaluation.rows(setting).items():
        if settings.json:
            counts = row.statistics and row.statistics.to_dict()
            is_identical = index in plain and plain[index].new_ids == row.new_ids
            found = {"prompt": prompts[index], "text": row.text, "identical": is_identical, "statistics": counts}
            print(json.dumps(found))
        elif shows and not streams:
            screen.print_text(out, f"{prompts[index]}{ending}", [(row.text, False)])
    if is_stopped:
        err.print(f"\nstopped after {totals.num_prompts} of {total} prompts")
    if not settings.json:
        screen.print_evaluation(out, evaluation, settings.glossary)
    else:
        for bad in evaluation.bad_rows:
            err.print(Text.assemble(("skipped", "yellow"), f" {prompts[bad.index][:40]!r}: {bad.message}"))
        of_plain = evaluation.totals(setting.baseline).to_dict()
        print(json.dumps({"total": totals.to_dict() | {"plain": of_plain}}), flush=True)
    if is_stopped:
        raise typer.Exit(STOPPED)
    if not totals.num_prompts:
        raise typer.Exit(1)


def _show_demo(context: typer.Context, settings: Options, out: Console, err: Console) -> None:
    found = ((name, context.get_parameter_source(name)) for name in context.params)
    given = [name for name, source in found if source is not None and source.name != "DEFAULT"]
    allowed = ("demo", "max_new_tokens", "repeats")
    if idle := [f"--{name.replace('_', '-')}" for name in given if name not in allowed]:
        raise ValueError(f"{', '.join(idle)} beside --demo, which has models, prompts and settings of its own.")
    with loading(err):
        from . import demo

        loaded = demo.load()
    demo.show(out, loaded, settings.max_new_tokens, settings.repeats or ENOUGH)
