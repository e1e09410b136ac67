"""The command `hf-speculative serve`."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from rich.console import Console

from ..command.arguments import (
    DTYPES,
    check_device,
    check_dtype,
    check_models,
    from_table,
    load_draft_named,
    load_named,
    loadable,
    naming,
    with_drafting_options,
)
from ..command.interrupts import ends_at_once
from ..command.terminal import quiet_transformers

#: what answers that run get to end in, after a signal to stop
GRACE_SECONDS = 20
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@with_drafting_options("draft_model", several=False)
def serve(
    model: Annotated[
        str | None, typer.Argument(help="The model to serve: a Hub name or folder. Default: the embedded pair.")
    ] = None,
    draft_model: Annotated[str | None, from_table("draft_model", also="Default: auto.")] = None,
    name: Annotated[str, typer.Option(help="What clients call the model. Default: the last part of MODEL.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel="Server")] = "localhost",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535, rich_help_panel="Server")] = 8000,
    max_lanes: Annotated[
        int, typer.Option(help="Requests that run together; others wait in order.", min=1, rich_help_panel="Limits")
    ] = 16,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that may wait; more get status 429.", min=1, rich_help_panel="Limits")
    ] = 1024,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of prompt and answer together. Default: the model's.", min=2, rich_help_panel="Limits"
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.", min=1, rich_help_panel="Limits")] = 8
    * 2**20,
    dtype: Annotated[
        str, typer.Option(help=f"Number format of the weights: {', '.join(DTYPES)}. Default: as stored.")
    ] = "",
    device: Annotated[str, typer.Option(help="Where to run: cpu, cuda, ... Default: cuda if there is one.")] = "",
    drafting: dict | None = None,
) -> None:
    """Serve a model with OpenAI's API, with drafts, many requests at a time.

    On transformers' own server: chat completions, completions, responses, /v1/models, /health; and /metrics for Prometheus.
    Every request keeps its own settings. One with a seed gets the tokens that it would get alone.

    Nothing to download:  hf-speculative serve

    Your own:  hf-speculative serve Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B

    Ask it:  curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{"prompt": "def main():"}'
    """
    check_dtype(dtype)
    check_models(MODEL=model, draft_model=draft_model)
    console = Console(stderr=True)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ValueError(f"a server needs {error.name}: pip install 'hf_speculative[serving]'.") from error
    with ends_at_once(), console.status("loading"):
        quiet_transformers()
        check_device(device)
        import torch
        from transformers import AutoProcessor

        from ..call.configuration import SpeculativeConfig, as_keywords
        from ..embedded import embedded_pair
        from ..generation import attach
        from ..models import choose
        from .app import build_app
        from .engine import Engine
        from .patience import PatientProtocol

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        drafts = dict(drafting or {})
        if model is None:
            target, draft, processor = embedded_pair(getattr(torch, dtype or "float32"), head=True)
            target, drafts = target.to(device), {"draft_model": draft.to(device)} | drafts
        else:
            target = load_named("MODEL", model, dtype, device)
            with naming("MODEL", model):
                processor = AutoProcessor.from_pretrained(loadable(model), trust_remote_code=False)
        if draft_model:
            drafts["draft_model"] = load_draft_named("--draft-model", draft_model, dtype, device)
        name = name or (model.rstrip("/").split("/")[-1] if model else "embedded")
        tokenizer = getattr(processor, "tokenizer", processor)
        is_ragged = choose(target).name == "ragged"
        if not is_ragged:
            attach(target, drafts.pop("draft_model", None), config=SpeculativeConfig(**drafts))
        engine = is_ragged and Engine(
            target,
            max_lanes=max_lanes,
            max_waiting=max_waiting,
            max_length=max_length,
            tokenizer=tokenizer,
            **as_keywords({"draft_model": "auto"} | drafts),
        )
        app = build_app(target, processor, name, engine or None, max_body)
    if not is_ragged:
        console.print(f"{type(target).__name__} {choose(target).reason}: requests are served one at a time.")
    if host not in LOOPBACK:
        console.print(f"[bold]{host} can be reached from other machines[/], and nobody is asked who they are.")
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    console.print(f"{name} at http://{host}:{port}/v1 (Ctrl-C ends it)")
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        http=PatientProtocol,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    if engine:
        engine.close()
