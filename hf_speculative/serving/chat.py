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

HELP = """\
/help             this
/clear            begin a new conversation
/set NAME VALUE   temperature, top_p, top_k, repetition_penalty, max_new_tokens, seed
/settings         how they are set
/drafts           show accepted draft tokens in green, or stop showing them
/save FILE        write the conversation as JSON
/exit             leave (so does Ctrl-D); Ctrl-C ends a reply
"""


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

        names = ("MODEL", "--draft-model")
        target, draft, tokenizer, _ = load_pair(settings.model, settings.draft_model, settings.machine, names, False)
        of_replies = {"temperature": settings.temperature, "max_new_tokens": settings.max_new_tokens}
        of_replies |= {} if settings.seed is None else {"seed": settings.seed}
        keywords = as_keywords({"draft_model": "auto" if draft is None else draft} | drafting)
        conversation = Conversation(target, tokenizer, keywords, of_replies, settings.system)
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited, and recalled
    if sys.stdin.isatty():
        console.print("[dim]/help for commands, Ctrl-D to leave[/]")
    Talk(console, conversation, settings.show_drafts).run()


class Talk:
    """Lines in, replies out."""

    def __init__(self, console: Console, conversation: Conversation, shows_drafts: bool):
        self.console, self.conversation, self.shows_drafts = console, conversation, shows_drafts

    def run(self) -> None:
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.console.print()
                continue
            if line in ("/exit", "/quit"):
                return
            try:
                self.obey(line) if line.startswith("/") else self.say(line)
            except (ValueError, TypeError, OSError, RuntimeError) as error:  # the conversation goes on
                self.console.print(str(error), style="red", markup=False)

    def say(self, line: str) -> None:
        """One reply; Ctrl-C ends it."""
        if not line:
            return
        with closing(self.conversation.reply(line)) as pieces:
            try:
                for piece, is_from_draft in pieces:
                    self.console.out(piece, style="green" if is_from_draft and self.shows_drafts else None, end="")
            except KeyboardInterrupt:
                self.console.out(" ...", style="dim", end="")
        self.console.out("")
        self.console.print(self.conversation.status, style="dim", markup=False)

    def obey(self, line: str) -> None:
        """A command.

        Raises:
            ValueError: there is no such command, or it lacks something.
        """
        name, *words = line.split()
        if name == "/help":
            self.console.print(HELP, markup=False)
        elif name == "/clear":
            self.conversation.clear()
        elif name == "/settings":
            self.console.print(", ".join(f"{key} {value}" for key, value in self.conversation.settings.items()))
        elif name == "/drafts":
            self.shows_drafts = not self.shows_drafts
        elif name == "/set" and len(words) == 2:
            self.conversation.set(*words)
        elif name == "/save" and len(words) == 1:
            self.conversation.save(words[0])
        else:
            raise ValueError(f"{line}: no such command, or words are missing; /help lists them.")
