"""Replicas of a server behind one address, with Ray Serve: `pip install 'hf_speculative[ray-serve]'`. A file to copy.

python examples/serve_replicas.py  # then ask http://localhost:8000/v1 as any server of OpenAI's API
"""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from hf_speculative.serving.guard import MAX_BODY, Guard

Message = MutableMapping[str, Any]
#: replicas that a request is tried on, in turn
MOST_TRIES = 5
#: under way at a time
MOST_REQUESTS = 1024
#: what of a request's scope goes to a replica
OF_SCOPE = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "query_string",
    "headers",
    "root_path",
    "client",
    "server",
)


class Replica:
    """One application with its own model; `build` makes it, on the machine where it runs."""

    def __init__(self, build: Callable[[], Any]):
        self.app = build()

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The ASGI messages of the answer to a request."""
        messages, is_gone = asyncio.Queue(), asyncio.Event()  # type: ignore[var-annotated]
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await is_gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(self.app(scope, receive, messages.put))
        try:
            is_whole = False
            while not is_whole:
                message = await messages.get()
                yield message
                is_whole = message["type"] == "http.response.body" and not message.get("more_body")
        finally:
            is_gone.set()  # tells the application that the client is gone
            await asyncio.gather(task, return_exceptions=True)


class _Front:
    """Passes requests on; those of a replica that dies begin anew on another one, unless their answer had begun."""

    def __init__(self, replicas):
        self.replicas = replicas

    def __serve_build_asgi_app__(self) -> Guard:
        return Guard(self.pass_on, api_key=None, max_body=MAX_BODY, max_requests=MOST_REQUESTS)

    async def pass_on(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"")  # whole: `Guard` has read it
        request, has_begun = {name: scope[name] for name in OF_SCOPE if name in scope}, False
        for nth in range(MOST_TRIES):
            try:
                answer = self.replicas.answer.options(stream=True).remote(request, body)
                if "client_of_answers" in scope:
                    scope["client_of_answers"].add(answer)
                async for message in answer:
                    has_begun = True
                    await send(message)
                return
            except (RayError, RayServeException):  # what an application raises is answered there
                if has_begun or nth == MOST_TRIES - 1:
                    raise
                await asyncio.sleep(0.1 * 2**nth)


def deployment(build: Callable[[], Any], target_ongoing_requests: int = 16, max_replicas: int = 4, **options):
    """An application for `serve.run`: replicas that grow and shrink with the requests under way.

    Args:
        build: makes the application of one replica: loads a model and calls `hf_speculative.serving.app.build_app`.
        target_ongoing_requests: of a replica; with more, others start, up to `max_replicas`.
        **options: of Ray's `serve.deployment`: `num_replicas` for a fixed number, `ray_actor_options`, and
            `request_router_config`, for Ray's prefix-aware router.
    """
    scaling = {"min_replicas": 1, "max_replicas": max_replicas, "target_ongoing_requests": target_ongoing_requests}
    of_replicas: dict[str, Any] = {"max_ongoing_requests": MOST_REQUESTS}
    if "num_replicas" not in options:
        of_replicas["autoscaling_config"] = scaling
    replicas = serve.deployment(**of_replicas | options)(Replica).bind(build)
    return serve.deployment(max_ongoing_requests=MOST_REQUESTS)(serve.ingress()(_Front)).bind(replicas)


def build():
    """On each replica: the embedded pair, and the application around it."""
    from hf_speculative.embedded import embedded_pair
    from hf_speculative.serving.app import build_app
    from hf_speculative.serving.engine import Engine
    from hf_speculative.serving.served import Served

    target, draft, tokenizer = embedded_pair()
    engine = Engine(target, tokenizer=tokenizer, draft_model=draft)
    return build_app(Served(target, tokenizer, "embedded", engine))


if __name__ == "__main__":
    serve.run(deployment(build, num_replicas=2), blocking=True)
