"""The web application with OpenAI's endpoints, on FastAPI, and counts for Prometheus, under vLLM's names."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException

from .answers import Answer, TextAnswer, sse
from .engine import Closed, Engine, QueueFull
from .guard import MAX_BODY, Guard, error_body, error_of
from .protocol import Chat, Completion, Sampling, Tokenize, UnknownModel, parse
from .replies import TOLD, Event, Reply, words_of
from .responses import ResponseAnswer, Responses
from .served import Served

ENDPOINTS: dict[str, tuple[type[Sampling], type]] = {
    "/v1/chat/completions": (Chat, Answer),
    "/v1/completions": (Completion, TextAnswer),
    "/v1/responses": (Responses, ResponseAnswer),
}
#: the most requests under way without an engine
MAX_REQUESTS = 1024


def build_app(served: Served, max_body: int = MAX_BODY, api_key: str | None = None, origins: Sequence[str] = ()) -> FastAPI:
    """Build the application.

    Args:
        max_body: the most bytes of a request's body.
        api_key: the key that requests need; `None`: no key.
        origins: of web pages that may send requests (CORS), `"*"` for all.
    """
    engine, name = served.engine, served.name

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(served.close)

    about = {"id": name, "object": "model", "created": 0, "owned_by": "hf_speculative"}
    about |= {"max_model_len": served.max_length}
    app = FastAPI(title="hf_speculative", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    for path, (kind, answer) in ENDPOINTS.items():
        app.post(path)(_endpoint(served, kind, answer))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> JSONResponse:
        return JSONResponse(await asyncio.to_thread(_tokenized, served, await request.body()))

    @app.post("/load_model")
    async def load_model() -> Response:
        """What `transformers chat` asks first."""
        return Response(sse({"status": "ready", "cached": True}), media_type="text/event-stream")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [about]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != served.name:
            raise UnknownModel(name, served.name)
        return about

    @app.get("/health")
    async def health() -> JSONResponse:
        is_alive = engine is None or engine.is_alive
        return JSONResponse({"status": "ok" if is_alive else "dead"}, 200 if is_alive else 503)

    if engine is not None:
        registry = CollectorRegistry()
        registry.register(EngineMetrics(engine, name))

        @app.get("/metrics")
        @app.get("/metrics/")
        def metrics() -> Response:
            return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    for error in (*TOLD, HTTPException, Exception):
        app.add_exception_handler(error, _answer_error)
    max_requests = MAX_REQUESTS if engine is None else engine.max_lanes + engine.max_waiting
    app.add_middleware(Guard, api_key=api_key, max_body=max_body, max_requests=max_requests)
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    return app


def _tokenized(served: Served, raw: bytes) -> dict[str, Any]:
    body = parse(Tokenize, raw)
    served.check(body)
    (prompt,) = served.prompts(body)
    answer: dict[str, Any] = {"count": len(prompt.ids), "max_model_len": served.max_length, "tokens": prompt.ids}
    if body.return_token_strs:
        answer["token_strs"] = served.tokenizer.convert_ids_to_tokens(prompt.ids)
    return answer


def _endpoint(served: Served, kind: type[Sampling], answer_kind: type):
    async def endpoint(request: Request) -> Response:
        raw, loop = await request.body(), asyncio.get_running_loop()
        queue: asyncio.Queue[Event] = asyncio.Queue()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        def begin() -> tuple[Any, list[Reply]]:
            body = parse(kind, raw)
            replies = served.begin(body, request.scope["client_of_answers"], tell)
            return answer_kind(body, served.name, served.tokenizer), replies

        # On a thread: what reads, tokenises and compiles takes up to seconds, in which others are answered.
        answer, replies = await asyncio.to_thread(begin)
        if answer.body.stream:
            return StreamingResponse(_stream(answer, replies, queue), media_type="text/event-stream")
        for _ in replies:
            event = await queue.get()
            if event.reply.error is not None:
                raise event.reply.error
            answer.add(event)
        return JSONResponse(answer.whole(replies))

    return endpoint


async def _stream(answer, replies: list[Reply], queue: asyncio.Queue) -> AsyncIterator[str]:
    """Events of a stream."""
    if begun := answer.begin(replies):
        yield begun
    num_left = len(replies)
    while num_left:
        event = await queue.get()
        num_left -= event.is_end
        if (error := event.reply.error) is not None:
            yield answer.failed(error_body(_status(error), words_of(error)))
            return
        if chunks := "".join(answer.chunks(event, replies, is_last=not num_left)):
            yield chunks


def _status(error: BaseException) -> int:
    kinds: dict[type, int] = {UnknownModel: 404, **dict.fromkeys(TOLD, 400), QueueFull: 429, Closed: 503}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), 500)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return error_of(error.status_code, str(error.detail))
    return error_of(_status(error), words_of(error), getattr(error, "param", None), getattr(error, "code", None))


class EngineMetrics(Collector):
    """Counts of an engine, read at each scrape.

    Args:
        name: of the model, a label of all metrics.
    """

    def __init__(self, engine: Engine, name: str):
        self.engine, self.name = engine, name

    def collect(self) -> Iterator[Metric]:
        engine, counts, num_prompt_tokens = self.engine, self.engine.statistics, self.engine.num_prompt_tokens
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, text, value in (
            (gauge, "num_requests_running", "Requests in the batch.", engine.num_running),
            (gauge, "num_requests_waiting", "Requests that wait for a lane.", engine.num_waiting),
            (counter, "prompt_tokens", "Tokens of prompts.", num_prompt_tokens),
            (counter, "prefix_cache_queries", "Tokens of prompts, looked for in the rows that run.", num_prompt_tokens),
            (counter, "prefix_cache_hits", "Of these, tokens that were cached already.", engine.num_cached_tokens),
            (counter, "generation_tokens", "Tokens generated.", counts.num_new_tokens),
            (counter, "spec_decode_num_drafts", "Drafts that were verified.", counts.num_spec_steps),
            (counter, "spec_decode_num_draft_tokens", "Draft tokens proposed.", counts.num_draft_tokens),
            (counter, "spec_decode_num_accepted_tokens", "Draft tokens accepted.", counts.num_accepted_draft_tokens),
        ):
            yield self._family(kind, name, text, {(): value})
        later = counts.acceptance_histogram[1:]
        accepted = {(str(i),): sum(later[i:]) for i in range(len(later))}
        text = "Drafts whose token at this position was accepted."
        yield self._family(counter, "spec_decode_num_accepted_tokens_per_pos", text, accepted, "position")
        ended = {(how,): num for how, num in list(engine.ended.items())}
        yield self._family(counter, "request_success", "Requests that ended, by how.", ended, "finished_reason")

    def _family(self, kind, name: str, text: str, values: Mapping[Any, int], *labels: str) -> Metric:
        family = kind(f"vllm:{name}", text, labels=["model_name", *labels])
        for keys, value in values.items():
            family.add_metric([self.name, *keys], value)
        return family
