"""`hf-speculative generate --demo`: three answers of a chat model, plain and speculative side by side, then one sentence."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...call.attached import attached_to
from ...embedded import embedded_pair
from ...embedded.examples import example_pair
from ...generation import attach
from ...reports.pages import visible
from ...reports.terminal import as_text
from ..comparison import Piece, Texts
from ..drafts import NamedDraft
from ..render.screen import STYLES
from ..results import Evaluation
from ..run import evaluate
from ..settings import Setting
from ..speedup import Speedup, Work, interval

#: new tokens of each text, and how often each is timed both ways
NUM_TOKENS, REPEATS = 72, 3
#: texts are replayed this many times slower, to be followed by eye
SLOWER = 4.0
COLOURS = "[green]Green[/]: draft tokens that the target kept; [bold]bold[/]: the target's own."
HOW_TO_GO_ON = """\
Your own models:   hf-speculative generate --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B "Once upon a time"
Without a draft:   hf-speculative generate --model Qwen/Qwen3-8B "Once upon a time"
Which is fastest:  hf-speculative eval --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --dataset prompts.jsonl"""


@dataclass(frozen=True)
class Scene:
    """One text of the demo, under a setting that promises plain decoding's tokens."""

    title: str
    prompt: str
    setting: Setting
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A target with a draft, and the scenes of the demo.

    Attributes:
        introduction: printed first.
    """

    target: PreTrainedModel
    draft: Any
    tokenizer: PreTrainedTokenizerBase
    introduction: str
    scenes: tuple[Scene, ...]


CODE = (
    Scene(
        "greedy, with a repetition penalty",
        "class Lock:\n    def __enter__(self):\n        return self\n\n"
        "    def __exit__(self, *args):\n        self.release()\n\n    def",
        Setting(draft_model="draft", num_draft_tokens=4),
        kwargs={"repetition_penalty": 1.3},
    ),
    Scene(
        "greedy, without a draft model: what the target found likely before, and copies",
        "class Node:\n    def __init__(self, value, parent=None):",
        Setting(draft_model="auto"),
        kwargs={"no_repeat_ngram_size": 8},
    ),
    Scene(
        "sampled at temperature 0.6, the very tokens of plain sampling under the same seed",
        'def parse_version(text):\n    """Parse a version',
        Setting(draft_model="draft", num_draft_tokens=4, temperature=0.6, reproducible=True),
        kwargs={"top_p": 0.9},
    ),
)
GREEDY = Setting(draft_model="draft", num_draft_tokens=6)
CHAT = (
    Scene(
        "greedy: some code",
        "Write a Python function that returns the even numbers of a list, with a docstring and an example.",
        GREEDY,
    ),
    Scene(
        "greedy: an answer that copies",
        "Correct the spelling: 'The libary opens at nine oclock. Childrens books are on the frist floor, and the cafe is "
        "next to the entrence.' Then write the corrected text once more.",
        GREEDY,
    ),
    Scene(
        CODE[-1].title,
        "Explain to a beginner why the sky is blue.",
        Setting(draft_model="draft", num_draft_tokens=6, temperature=0.6, reproducible=True),
        kwargs={"top_p": 0.9},
    ),
)


def stage() -> Stage:
    """Load SmolLM2 with its warm tables, weights packed; the embedded pair where SmolLM2 cannot be loaded."""
    try:
        target, draft, tokenizer = example_pair()
    except (ValueError, OSError) as error:
        target, head, tokenizer = embedded_pair(head=True)
        said = f"SmolLM2 is not here: {error}\nSo this is a target of 8 million weights that writes what looks like Python."
        return Stage(target, head, tokenizer, f"{said}\n{COLOURS}", CODE)
    attach(target, draft)
    said = "SmolLM2-135M-Instruct answers three questions. Its draft is a table of what it wrote before."
    return Stage(target, attached_to(target)[0], tokenizer, f"{said}\n{COLOURS}", CHAT)


def show(console: Console, stage: Stage, num_tokens: int = NUM_TOKENS, repeats: int = REPEATS) -> None:
    """Decode, show and time all scenes. On a terminal, texts appear at the pace they were written at, only slower."""
    console.print(stage.introduction)
    pairs: list[tuple[Work, Work]] = []
    counts = [0, 0]
    all_same = True
    for number, scene in enumerate(stage.scenes, start=1):
        drafts = {"draft": NamedDraft(stage.draft)}
        options = {"max_new_tokens": num_tokens, **scene.kwargs}
        texts = Texts(stage.target, drafts, stage.tokenizer, scene.setting, **options)
        # few frames: they take time from what is measured
        waiting = console.status(f"text {number} of {len(stage.scenes)}: decoding both ways", refresh_per_second=2)
        with waiting if _is_watched(console) else nullcontext():
            plain, ours = texts.timelines(scene.prompt)
            evaluation = evaluate(
                stage.target,
                drafts,
                [scene.prompt],
                tokenizer=stage.tokenizer,
                settings=[scene.setting],
                repeats=repeats,
                progress=False,
                **options,
            )
        passes = _passes(evaluation, scene.setting.baseline), _passes(evaluation, scene.setting)
        console.print(as_text(f"\n{number}. {scene.title}", "bold"))
        _play(console, f"{scene.prompt}\n" if texts.is_chat else scene.prompt, plain, ours, passes)
        pairs += evaluation.pairs(scene.setting, scene.setting.baseline).values()
        counts = [total + new for total, new in zip(counts, passes, strict=True)]
        all_same &= evaluation.totals(scene.setting).num_identical == 1
    speedup = Speedup.of(pairs, interval)
    console.print(f"\n[bold]{sentence(counts[1], counts[0], all_same, speedup)}[/]\n")
    console.print(HOW_TO_GO_ON, highlight=False, soft_wrap=True)


def _passes(evaluation: Evaluation, setting: Setting) -> int:
    """Target passes of the first repeat."""
    return evaluation.calls[setting.name][0].num_target_passes


def sentence(passes: int, plain_passes: int, all_same: bool, speedup: Speedup | None) -> str:
    """Summarise the demo in one sentence."""
    text = "the same texts" if all_same else "texts that differ, which is a bug: please report it"
    parts = [f"{passes} passes of the target instead of {plain_passes}", text]
    if speedup is not None:
        spread = "" if speedup.spread is None else " ({:.1f} to {:.1f})".format(*speedup.spread)
        parts.append(f"{speedup.median:.1f}x{spread} on this machine")
    return "; ".join(parts) + "."


def _play(console: Console, prompt: str, plain: list[Piece], ours: list[Piece], passes: tuple[int, int]) -> None:
    """Replay both texts on one clock; print them at once where the console is no terminal."""
    *above, line = prompt.split("\n")
    console.print(as_text("\n".join(above), "dim"))
    if not _is_watched(console):
        console.print(_both(line, plain, ours, passes))
        return
    with Live(_both(line, [], [], passes), console=console, refresh_per_second=20) as live:
        start, end = time.perf_counter(), max(plain[-1].seconds, ours[-1].seconds)
        while (now := (time.perf_counter() - start) / SLOWER) < end:
            live.update(_both(line, _until(now, plain), _until(now, ours), passes))
            time.sleep(0.04)
        live.update(_both(line, plain, ours, passes))


def _is_watched(console: Console) -> bool:
    return console.is_terminal and not console.record


def _until(now: float, pieces: list[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece.seconds <= now]


def _both(line: str, plain: list[Piece], ours: list[Piece], passes: tuple[int, int]) -> Group:
    table = Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row(_panel("plain", line, plain, passes[0]), _panel("speculative", line, ours, passes[1]))
    return Group(table)


def _panel(name: str, line: str, pieces: list[Piece], passes: int) -> Panel:
    text = Text.assemble((visible(line), "dim"))
    for piece in pieces:
        text.append_text(as_text(piece.text, STYLES[piece.is_from_draft]))
    title = Text.assemble((name, "bold"), f", {passes} passes")
    return Panel(text, title=title, title_align="left", border_style="dim")
