"""The command `hf-speculative playground`."""

import os
import threading
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from ..call.option_table import DRAFTS
from ..command.loading import load_pair
from ..command.prompts import NUM_PYTHON, built_in_prompts
from ..command.settings import Machine, option, raw_setting, setting, target_option, with_settings
from ..command.terminal import loading, warn_of_host

#: for the embedded pair, which repeats itself without the penalty
PENALTY = 1.2
#: a heading among the options
SERVER = "Server"


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("The model to play with")
    draft_model: str | None = option("draft_model", also="Default: auto. The page lets you choose methods anew.")
    prompt: str = setting("", "What stands in the page's prompt at first.")
    raw: bool = raw_setting()
    host: str = setting("127.0.0.1", "Address to listen on.", panel=SERVER)
    port: int = setting(7860, "Port to listen on.", least=1, most=65535, panel=SERVER)
    open: bool = setting(False, "Open the page in a browser.", panel=SERVER)
    machine: Machine = field(default_factory=Machine)


@with_settings(Options)
def playground(settings: Options) -> None:
    """See speculative decoding at work, on a page in your browser.

    Plain and speculative decoding write the same prompt side by side, on a clock each. Draft tokens that were kept are marked,
    with their chances. Every round can be stepped through: what was drafted, what was kept, why, and by which distributions.

    The page is served on this machine only, asks nothing of others, and works offline.

    Try it, nothing to download:  hf-speculative playground --open

    Your own:  hf-speculative playground Qwen/Qwen3-4B --draft-model Qwen/Qwen3-0.6B

    Without a draft model:  hf-speculative playground Qwen/Qwen3-4B --draft-model suffix
    """
    host, port = settings.host, settings.port
    console = Console(stderr=True, highlight=False)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with loading(console, "loading"):
        try:
            from .page import build, look
        except ImportError as error:
            raise ValueError(f"the playground needs {error.name}: pip install 'hf_speculative[playground]'.") from error
        from ..tokenizers.chat import speaks_chat
        from .runs import Models, Settings as PageSettings, run

        target, draft, tokenizer, other = load_pair(settings.model, settings.draft_model, settings.machine)
        own, method = (None, None) if draft is None else DRAFTS.split(draft)
        models = Models(target, tokenizer, own, other, method)
        is_embedded = settings.model is None
        prompts = [settings.prompt] if settings.prompt else []
        found = built_in_prompts(speaks_chat(tokenizer) and not settings.raw)
        prompts += found[:NUM_PYTHON] if is_embedded else found
        name = " and ".join(filter(None, [settings.model or "The embedded pair", settings.draft_model]))
        for _ in run(models, PageSettings(max_new_tokens=4, method=models.methods[0]), "a"):
            pass  # set-up of a first call would count against the way that runs first
        first = PageSettings(repetition_penalty=PENALTY if is_embedded else 1.0)
        page = build(models, name, prompts, first, raw=settings.raw)
    warn_of_host(console, host)
    where: dict[str, Any] = {"server_name": host, "server_port": port, "share": False, "inbrowser": settings.open}
    page.launch(**where, **look(), prevent_thread_lock=True, quiet=True)
    console.print(f"{name} at http://{host}:{port} (Ctrl-C ends it)")
    try:
        _wait()
    finally:
        page.close(verbose=False)


def _wait() -> None:
    """Until Ctrl-C."""
    threading.Event().wait()
