"""The command `hf-speculative serve`."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ..command.checks import naming
from ..command.loading import load_pair, loadable
from ..command.settings import Machine, option, setting, target_option, with_drafting_options, with_settings
from ..command.terminal import loading, warn_of_host

#: time for running answers to end after a signal to stop
GRACE_SECONDS = 20


#: headings among the options
SERVER, LIMITS = "Server", "Limits"


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    model: str | None = target_option("The model to serve")
    draft_model: str | None = option("draft_model", also="Default: auto.")
    learn: Path | None = setting(
        None, "Train the draft on what is served, and keep it in this folder; texts are kept in memory alone."
    )
    name: str = setting("", "What clients call the model. Default: the last part of MODEL.")
    host: str = setting("localhost", "Address to listen on.", panel=SERVER)
    port: int = setting(8000, "Port to listen on.", least=0, most=65535, panel=SERVER)
    api_key: str = setting("", "Key that clients show, or $HF_SPECULATIVE_API_KEY. Default: none.", panel=SERVER)
    allow_origin: str = setting("", "Web pages that may ask (CORS), with commas between them; * for all.", panel=SERVER)
    max_lanes: int = setting(16, "Requests that run together; others wait in order.", least=1, panel=LIMITS)
    max_waiting: int = setting(1024, "Requests that may wait; more get status 429.", least=1, panel=LIMITS)
    max_length: int | None = setting(None, "Tokens of prompt and answer. Default: the model's.", least=2, panel=LIMITS)
    max_tokens: int | None = setting(None, "Tokens of an answer, at most. Default: all that fit.", least=1, panel=LIMITS)
    max_body: int = setting(8 * 2**20, "Bytes of a request's body.", least=1, panel=LIMITS)
    machine: Machine = field(default_factory=Machine)


@with_drafting_options("draft_model")
@with_settings(Options)
def serve(settings: Options, drafting: dict[str, Any]) -> None:
    """Serve a model with OpenAI's API, with drafts, many requests at a time.

    Chat completions, completions, responses, /v1/models, /tokenize, /health; and /metrics for Prometheus.
    Every request keeps its own settings. One with a seed gets the tokens that it would get alone.

    Nothing to download:  hf-speculative serve

    Your own:  hf-speculative serve Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B

    Ask it:  curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{"prompt": "def main():"}'
    """
    model, host, port = settings.model, settings.host, settings.port
    console = Console(stderr=True)
    with loading(console, "loading"):
        from transformers import AutoProcessor

        from ..call.attached import attached_to
        from ..call.configuration import SpeculativeConfig, as_keywords
        from ..call.preparation import prepare
        from ..generation import attach
        from ..models import choose
        from .engine import Engine

        try:
            import uvicorn

            from .app import build_app
            from .served import Served
        except ImportError as error:
            raise ValueError(f"a server needs {error.name}: pip install 'hf_speculative[serving]'.") from error

        target, draft, processor, draft_tokenizer = load_pair(model, settings.draft_model, settings.machine, head=True)
        engine, keywords = None, as_keywords(drafting)
        config = keywords.pop("speculative_config", None) or SpeculativeConfig()
        if draft_tokenizer is not None:
            config = SpeculativeConfig(tokenizer=processor, draft_tokenizer=draft_tokenizer).over(config)
        if model is not None:
            with naming("MODEL", model):
                processor = AutoProcessor.from_pretrained(loadable(model), trust_remote_code=False)
        name = settings.name or (model.rstrip("/").split("/")[-1] if model else "embedded")
        api_key = settings.api_key or os.environ.get("HF_SPECULATIVE_API_KEY")
        # Its passes are the fastest that are safe.
        attach(target, draft, learn=settings.learn, config=config)
        if choose(target).name == "ragged":
            limits = {name: getattr(settings, name) for name in ("max_lanes", "max_waiting", "max_length")}
            engine = Engine(target, tokenizer=getattr(processor, "tokenizer", processor), **limits, **keywords)
        else:
            if settings.max_lanes != Options.max_lanes or settings.max_waiting != Options.max_waiting:
                raise ValueError(f"--max-lanes and --max-waiting have no effect on {type(target).__name__}: leave them out.")
            prepare(target, dict(keywords), *attached_to(target))  # refuses what no request could use
        served = Served(target, processor, name, engine, settings.max_tokens, settings.max_length, keywords)
        origins = [origin.strip() for origin in settings.allow_origin.split(",") if origin.strip()]
        app = build_app(served, settings.max_body, api_key, origins)
    if engine is None:
        console.print(f"{type(target).__name__} {choose(target).reason}: requests are served one at a time.")
    if not api_key:
        warn_of_host(console, host)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    console.print(f"{name} at http://{host}:{port}/v1 (Ctrl-C ends it)")
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS)
