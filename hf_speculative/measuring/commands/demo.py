"""`hf-speculative generate --demo`: three answers of a chat model, plain and speculative side by side, then one sentence."""

import math
import time
from typing import Any, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...call.attached import attached_to
from ...embedded import embedded_pair, example_pair
from ...generation import attach
from ...reports.pages import as_text, visible
from ...tokenizers.chat import speaks_chat
from ..comparison import Piece, Texts
from ..render.screen import MEANING, STYLES
from ..settings import NamedDraft, Setting
from ..speedup import Speedup, Work, interval

#: texts are replayed this many times slower, to be followed by eye
SLOWER = 4.0
GREEDY = Setting(draft_model="draft", num_draft_tokens=6)
SAMPLED = Setting(draft_model="draft", num_draft_tokens=6, temperature=0.6, reproducible=True)
#: title, a question to a chat model, code for the embedded target to go on with, and how
SCENES = (
    (
        "greedy: some code",
        "Write a Python function that returns the even numbers of a list, with a docstring and an example.",
        "class Lock:\n    def __enter__(self):\n        return self\n\n    def __exit__(self, *args):",
        GREEDY,
    ),
    (
        "greedy: a text that copies",
        "Correct the spelling: 'The libary opens at nine oclock. Childrens books are on the frist floor, and the cafe is "
        "next to the entrence.' Then write the corrected text once more.",
        "class Node:\n    def __init__(self, value, parent=None):",
        GREEDY,
    ),
    (
        "sampled at temperature 0.6, the very tokens of plain sampling under the same seed",
        "Explain to a beginner why the sky is blue.",
        'def parse_version(text):\n    """Parse a version',
        SAMPLED,
    ),
)
#: for the embedded target, which repeats itself without one
PENALTY = 1.3
HOW_TO_GO_ON = """\
Your own models:   hf-speculative generate --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B "Once upon a time"
Without a draft:   hf-speculative generate --model Qwen/Qwen3-8B "Once upon a time"
Which is fastest:  hf-speculative eval --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --dataset prompts.jsonl"""
#: a sentence about them, the target, its draft, and their tokenizer
Loaded: TypeAlias = tuple[str, PreTrainedModel, Any, PreTrainedTokenizerBase]


def load() -> Loaded:
    """Load SmolLM2 with its warm tables, attached; the embedded pair where it cannot be loaded."""
    try:
        target, draft, tokenizer = example_pair()
    except (ValueError, OSError) as error:
        said = f"SmolLM2 is not here: {error}\nSo this is a target of 8 million weights that writes what looks like Python."
        return said, *embedded_pair(head=True)
    attach(target, draft)
    said = "SmolLM2-135M-Instruct answers three questions. Its draft is a table of what it wrote before."
    return said, target, attached_to(target)[0], tokenizer


def show(console: Console, loaded: Loaded, num_tokens: int, repeats: int) -> None:
    """Decode, show and time all scenes. On a terminal, texts appear at the pace they were written at, only slower."""
    introduction, target, draft, tokenizer = loaded
    console.print(f"{introduction}\n{MEANING}")
    is_chat = speaks_chat(tokenizer)
    options: dict[str, Any] = {} if is_chat else {"repetition_penalty": PENALTY}
    pairs: list[tuple[list[Piece], list[Piece]]] = []
    for number, (title, question, code, setting) in enumerate(SCENES, start=1):
        kwargs = options | ({"top_p": 0.9} if setting.temperature else {})
        texts = Texts(target, {"draft": NamedDraft(draft)}, tokenizer, setting, max_new_tokens=num_tokens, **kwargs)
        prompt = question if is_chat else code
        # few frames: they take time from what is measured
        with console.status(f"text {number} of {len(SCENES)}: decoding both ways", refresh_per_second=2):
            runs = [texts.timelines(prompt) for _ in range(repeats)]
        console.print(as_text(f"\n{number}. {title}", "bold"))
        _play(console, f"{prompt}\n" if is_chat else prompt, *runs[0])
        pairs += runs
    all_same = all(_text(plain) == _text(ours) for plain, ours in pairs)
    same = "the same texts" if all_same else "texts that differ, which is a bug: please report it"
    num_plain, num_ours = (sum(map(_passes, ways)) for ways in zip(*pairs[::repeats], strict=True))
    speedup = Speedup.of(((_work(ours), _work(plain)) for plain, ours in pairs), interval)
    assert speedup is not None  # all texts took time
    spread = "" if speedup.spread is None else " ({:.1f} to {:.1f})".format(*speedup.spread)
    told = f"{num_ours} passes of the target instead of {num_plain}; {same}; {speedup.median:.1f}x{spread} on this machine."
    console.print(f"\n[bold]{told}[/]\n")
    console.print(HOW_TO_GO_ON, highlight=False, soft_wrap=True)


def _text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _work(pieces: list[Piece]) -> Work:
    return Work(len(pieces), pieces[-1].seconds)


def _passes(pieces: list[Piece]) -> int:
    """Target passes: each but the last ended with a token of the target's own."""
    return 1 + sum(not piece.is_from_draft for piece in pieces[:-1])


def _play(console: Console, prompt: str, plain: list[Piece], ours: list[Piece]) -> None:
    """Replay both texts on one clock; print them at once where the console is no terminal."""
    *above, line = prompt.split("\n")
    console.print(as_text("\n".join(above), "dim"))

    def until(now: float) -> Table:
        table = Table.grid(Column(ratio=1), Column(ratio=1), expand=True)
        table.add_row(*(_panel(*way, line, now) for way in (("plain", plain), ("speculative", ours))))
        return table

    start, end = time.perf_counter(), max(plain[-1].seconds, ours[-1].seconds) * console.is_terminal
    with Live(console=console, refresh_per_second=20) as live:
        while (now := (time.perf_counter() - start) / SLOWER) < end:
            live.update(until(now))
            time.sleep(0.04)
        live.update(until(math.inf))


def _panel(name: str, pieces: list[Piece], line: str, now: float) -> Panel:
    shown = (as_text(piece.text, STYLES[piece.is_from_draft]) for piece in pieces if piece.seconds <= now)
    title = Text.assemble((name, "bold"), f", {_passes(pieces)} passes")
    return Panel(Text.assemble((visible(line), "dim"), *shown), title=title, title_align="left", border_style="dim")
