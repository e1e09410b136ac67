"""The web application: transformers' own, with our engine behind it, errors in OpenAI's shape, limits and metrics."""

import asyncio
import logging
import time
import uuid
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers import PreTrainedModel

from ..hf_compat.serving import X_REQUEST_ID, SystemOneHandler, TranscriptionHandler, build_server
from .engine import Closed, Engine, QueueFull
from .handlers import Chat, Completions, OneModel, Responses
from .manager import EngineManager, EngineState, words_of
from .metrics import registry_of

logger = logging.getLogger(__name__)
#: bytes of a request's body at most, by default
MAX_BODY = 8 * 2**20
#: in which a body has to be there, and at most between two parts of it
BODY_SECONDS, IDLE_SECONDS = 30.0, 10.0


def build_app(model: PreTrainedModel, processor, name: str, engine: Engine | None, max_body: int = MAX_BODY) -> FastAPI:
    """The application.

    Args:
        model: the target, with its drafts attached.
        processor: its tokenizer or processor.
        name: what clients call it.
        engine: what runs the requests; `None` for a model that no engine takes: one request at a time then.
        max_body: bytes of a request's body at most.
    """
    manager = EngineManager(engine)
    models, state = OneModel(name, model, processor), EngineState(model, manager)
    app = build_server(
        models,
        Chat(models, state),
        completion_handler=Completions(models, state),
        response_handler=Responses(models, state),
        transcription_handler=TranscriptionHandler(models, state),
        systemone_handler=SystemOneHandler(models, state),
        generation_state=state,
    )
    for kind, status in (
        (ValueError, 400),
        (TypeError, 400),
        (KeyError, 400),
        (QueueFull, 429),
        (Closed, 503),
        (Exception, 500),
    ):
        app.add_exception_handler(kind, _answering(status))
    app.add_exception_handler(StarletteHTTPException, _of_http)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    _replace_routes(app, models)
    if engine is not None:
        registry = registry_of(engine, name)

        @app.get("/metrics", include_in_schema=False)
        @app.get("/metrics/", include_in_schema=False)
        def metrics() -> Response:
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.add_middleware(Watched, manager=manager, max_body=max_body)
    return app


def _replace_routes(app: FastAPI, models: OneModel) -> None:
    """Of transformers' routes, those that load scripts from other sites go; `/load_model` checks its field."""
    dropped = ("/load_model", "/docs", "/docs/oauth2-redirect", "/redoc")
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in dropped]

    @app.post("/load_model")
    async def load_model(body: dict) -> StreamingResponse:
        model = body.get("model")
        if not isinstance(model, str):
            raise ValueError(f"`model={model!r}`: give the name of the model.")
        name = models.process_model_name(model)  # raises before the answer has begun
        return StreamingResponse(models.load_model_streaming(name), media_type="text/event-stream")


def error_of(status: int, message: str, code: str | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    kinds = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    headers = {"retry-after": "1"} if status in (429, 503) else None
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status_code=status, headers=headers)


def _answering(status: int):
    async def answer(request: Request, error: Exception) -> JSONResponse:
        if status == 500:
            logger.error("a request failed", exc_info=error)
        if isinstance(error, KeyError):
            return error_of(status, f"the request lacks the field {error}")
        return error_of(status, words_of(error))

    return answer


async def _of_http(request: Request, error: Any) -> JSONResponse:
    code = "model_not_found" if error.status_code == 404 and "model" in str(error.detail) else None
    status = 400 if error.status_code == 422 else error.status_code
    return error_of(status, str(error.detail), code)


async def _of_validation(request: Request, error: Any) -> JSONResponse:
    problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return error_of(400, f"the request's body cannot be read: {problems}")


class Watched:
    """Reads a request's body, up to a limit and in bounded time, and tells the engine when its client is gone.

    (Starlette notices that while it streams, but not while an answer is waited for.) Each request has an id of the server's; a
    client's own `x-request-id` is a label, which its answer gets back.
    """

    def __init__(self, app, manager: EngineManager, max_body: int):
        self.app, self.manager, self.max_body = app, manager, max_body

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body, is_whole, until = b"", False, time.monotonic() + BODY_SECONDS
        while not is_whole:
            try:
                patience = min(IDLE_SECONDS, until - time.monotonic())
                message = await asyncio.wait_for(receive(), max(0.0, patience))
            except asyncio.TimeoutError:
                answer = error_of(408, "the request's body did not arrive in time")
                answer.headers["connection"] = "close"
                await answer(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
            if len(body) > self.max_body:
                answer = error_of(413, f"the request's body has more than {self.max_body} bytes")
                await answer(scope, receive, send)
                return
        await self._answered(scope, body, receive, send)

    async def _answered(self, scope, body: bytes, receive, send) -> None:
        name, request_id = X_REQUEST_ID.encode(), str(uuid.uuid4()).encode()
        label = dict(scope["headers"]).get(name, request_id)
        scope["headers"] = _with(scope["headers"], name, request_id)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        is_gone = asyncio.Event()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            is_gone.set()
            self.manager.cancel(request_id.decode())

        async def replayed():
            if messages:
                return messages.pop()
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def labelled(message) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": _with(message.get("headers", []), name, label)}
            await send(message)

        watcher = asyncio.create_task(watch())
        try:
            await self.app(scope, replayed, labelled)
        finally:
            watcher.cancel()


def _with(headers, name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """Headers in which `name` is there once."""
    return [(key, other) for key, other in headers if key != name] + [(name, value)]
