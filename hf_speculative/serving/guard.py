"""Before a request is read: its key, the number under way, the size of its body and the time it takes to arrive."""

import asyncio
import hmac
import time
import uuid
from typing import Any

from starlette.responses import JSONResponse

from .replies import Client

#: bytes of a request's body at most, by default
MAX_BODY = 8 * 2**20
#: in which a body has to be there, and at most between two parts of it
BODY_SECONDS, IDLE_SECONDS = 30.0, 10.0
LABEL = b"x-request-id"
#: answered without a key
OPEN_PATHS = ("/health", "/metrics", "/metrics/")


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict:
    """An error in OpenAI's shape."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_of(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    headers = {429: {"retry-after": "1"}, 503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(status)
    return JSONResponse(error_body(status, message, param, code), status_code=status, headers=headers)


class Guard:
    """Lets requests through to the application, whole; `scope["client_of_answers"]` hears when their client is gone.

    (Starlette notices that while it streams, but not while an answer is waited for.) A client's own `x-request-id` is a label,
    which its answer gets back.

    Args:
        api_key: that requests have to show, but for `OPEN_PATHS`.
        max_body: bytes of a body at most.
        max_requests: under way at most.
    """

    def __init__(self, app, api_key: str | None, max_body: int, max_requests: int):
        self.app, self.api_key, self.max_body, self.max_requests = app, api_key, max_body, max_requests
        self.num_requests = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        label = headers.get(LABEL, str(uuid.uuid4()).encode())

        async def labelled(message) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message.get("headers", []), (LABEL, label)]}
            await send(message)

        if self.api_key and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
            shown = headers.get(b"authorization", b"")
            if not hmac.compare_digest(shown, b"Bearer " + self.api_key.encode()):
                return await error_of(401, "the API key is missing or wrong")(scope, receive, labelled)
        if scope["method"] != "POST":
            return await self.app(scope, receive, labelled)
        if self.num_requests >= self.max_requests:
            answer = error_of(429, f"{self.num_requests} requests are under way already: try again later")
            return await answer(scope, receive, labelled)
        self.num_requests += 1
        try:
            body = await self._body(receive)
            if isinstance(body, JSONResponse):
                await body(scope, receive, labelled)
            elif body is not None:
                await self._answered(scope, body, receive, labelled)
        finally:
            self.num_requests -= 1
        return None

    async def _body(self, receive) -> bytes | JSONResponse | None:
        """The body, or what is answered in its place; `None`: the client is gone."""
        body, until = b"", time.monotonic() + BODY_SECONDS
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, min(IDLE_SECONDS, until - time.monotonic())))
            except asyncio.TimeoutError:
                answer = error_of(408, "the request's body did not arrive in time")
                answer.headers["connection"] = "close"
                return answer
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.max_body:
                return error_of(413, f"the request's body has more than {self.max_body} bytes")
            if not message.get("more_body", False):
                return body

    async def _answered(self, scope, body: bytes, receive, send) -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        scope["client_of_answers"] = client = Client()

        async def watch() -> None:
            while (message := await receive())["type"] != "http.disconnect":
                pass
            messages.put_nowait(message)
            client.leave()

        async def replayed() -> dict[str, Any]:
            message = await messages.get()
            if message["type"] == "http.disconnect":  # as often as it is asked for
                messages.put_nowait(message)
            return message

        watcher = asyncio.create_task(watch())
        try:
            await self.app(scope, replayed, send)
        finally:
            watcher.cancel()
            client.leave()  # cancels what still runs for it
