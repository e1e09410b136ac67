"""The command `hf-speculative playground`."""

from __future__ import annotations

import os
import threading
from typing import Annotated

import typer
from rich.console import Console

from ..call.option_table import DRAFTS
from ..command.arguments import DTYPES, check_dtype, check_models, from_table, load_pair
from ..command.interrupts import ends_at_once
from ..command.terminal import quiet_transformers

LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: for the embedded pair, which repeats itself without the penalty
PROMPTS = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
    "    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):",
    "class Lock:\n    def __enter__(self):\n        return self\n\n"
    "    def __exit__(self, *args):\n        self.release()\n\n    def",
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
)
PENALTY = 1.2


def playground(
    model: Annotated[
        str | None, typer.Argument(help="The model to play with: a Hub name or folder. Default: the embedded pair.")
    ] = None,
    draft_model: Annotated[
        str | None, from_table("draft_model", also="Default: auto. The page lets you choose methods anew.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="What stands in the page's prompt at first.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel="Server")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535, rich_help_panel="Server")] = 7860,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.", rich_help_panel="Server")
    ] = False,
    dtype: Annotated[
        str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}. Default: as stored.")
    ] = "",
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, ... Default: cuda if there is one.")] = "",
) -> None:
    """See speculative decoding at work, on a page in your browser.

    Plain and speculative decoding write the same prompt side by side, on a clock each. Draft tokens that were kept are marked,
    with their chances; every round can be stepped through: what was drafted, what was kept, why, and by which distributions.

    The page is served on this machine only, asks nothing of others, and works offline.

    Try it, nothing to download:  hf-speculative playground --open

    Your own:  hf-speculative playground Qwen/Qwen3-4B --draft-model Qwen/Qwen3-0.6B

    Without a draft model:  hf-speculative playground Qwen/Qwen3-4B --draft-model suffix
    """
    check_dtype(dtype)
    check_models(MODEL=model, draft_model=draft_model)
    console = Console(stderr=True, highlight=False)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with ends_at_once(), console.status("loading"):
        quiet_transformers()
        try:
            from .page import build, look
        except ImportError as error:
            raise ValueError(f"the playground needs {error.name}: pip install 'hf_speculative[playground]'.") from error
        from .runs import Models, Settings, run

        target, draft, tokenizer, draft_tokenizer = load_pair(
            model, draft_model, dtype, device, ("MODEL", "--draft-model"), False
        )
        own, method = (None, None) if draft is None else DRAFTS.split(draft)
        models = Models(target, tokenizer, own, draft_tokenizer, method)
        is_embedded = model is None
        prompts = [prompt] * bool(prompt) + list(PROMPTS) * is_embedded
        name = " and ".join(filter(None, [model or "The embedded pair", draft_model]))
        for _ in run(models, Settings(max_new_tokens=4, method=models.methods[0]), "a"):
            pass  # what a first call sets up would be counted against whoever is first
        page = build(models, name, prompts, Settings(repetition_penalty=PENALTY if is_embedded else 1.0))
    if host not in LOOPBACK:
        console.print(f"[bold]{host} can be reached from other machines[/], and nobody is asked who they are.")
    page.launch(
        server_name=host,
        server_port=port,
        share=False,
        inbrowser=open_browser,
        prevent_thread_lock=True,
        quiet=True,
        **look(),
    )
    console.print(f"{name} at http://{host}:{port} (Ctrl-C ends it)")
    try:
        _wait()
    finally:
        page.close(verbose=False)


def _wait() -> None:
    """Until Ctrl-C."""
    threading.Event().wait()
