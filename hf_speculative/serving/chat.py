"""The command `hf-speculative chat`."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..command.arguments import Machine, check_models, load_pair, option, target_option, with_drafting_options
from ..command.interrupts import ends_at_once
from ..command.settings import setting, with_settings
from ..command.terminal import quiet_transformers

if TYPE_CHECKING:
    from .conversation import Conversation

HELP = "/clear begins a new conversation, /exit leaves (so does Ctrl-D), Ctrl-C ends a reply"


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("The model to talk to")
    draft_model: str | None = option("draft_model", also="Default: auto.")
    system: str = setting("", "The system's message, if the model has a chat template.")
    temperature: float = setting(0.7, "0 always takes the likeliest token.", least=0.0)
    max_new_tokens: int = setting(512, "Tokens of a reply, at most.", least=1)
    seed: int | None = setting(None, "The same seed gives the same replies again.")
    show_drafts: bool = setting(False, "Show accepted draft tokens in green.")
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self):
        check_models(MODEL=self.model, draft_model=self.draft_model)


@with_drafting_options("draft_model")
@with_settings(Options)
def chat(settings: Options, drafting: dict[str, Any]) -> None:
    """Talk to a model, with drafts.

    Replies appear as they are generated. A line below each says how fast it was and how many draft tokens were accepted.
    A model without a chat template goes on with your text.

    Try it, nothing to download:  hf-speculative chat --show-drafts

    Your own:  hf-speculative chat Qwen/Qwen3-4B --draft-model Qwen/Qwen3-0.6B
    """
    console = Console(highlight=False)
    with ends_at_once(), console.status("loading"):
        quiet_transformers()
        from ..call.configuration import as_keywords
        from .conversation import Conversation

        target, draft, tokenizer, _ = load_pair(settings.model, settings.draft_model, settings.machine)
        keywords = as_keywords({"draft_model": "auto" if draft is None else draft} | drafting)
        keywords |= {"max_new_tokens": settings.max_new_tokens, "do_sample": settings.temperature > 0}
        keywords |= {"temperature": settings.temperature} if settings.temperature else {}
        conversation = Conversation(target, tokenizer, keywords, settings.seed, settings.system)
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited, and recalled
    if sys.stdin.isatty():
        console.print(f"[dim]{HELP}[/]")
    talk(console, conversation, settings.show_drafts)


def talk(console: Console, conversation: Conversation, shows_drafts: bool) -> None:
    """Read lines and print replies, until the input ends."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print()
            continue
        if line == "/exit":
            return
        if line == "/clear":
            conversation.clear()
        elif line.startswith("/"):
            console.print(HELP, markup=False)
        elif line:
            try:
                say(console, conversation, line, shows_drafts)
            except (ValueError, TypeError, OSError, RuntimeError) as error:  # keep the conversation
                console.print(str(error), style="red", markup=False)


def say(console: Console, conversation: Conversation, line: str, shows_drafts: bool) -> None:
    """Print a reply as it comes, and its status; Ctrl-C ends it."""
    with closing(conversation.reply(line)) as pieces:
        try:
            for piece, is_from_draft in pieces:
                console.out(piece, style="green" if is_from_draft and shows_drafts else None, end="")
        except KeyboardInterrupt:
            console.out(" ...", style="dim", end="")
    console.out("")
    console.print(conversation.status, style="dim", markup=False)
