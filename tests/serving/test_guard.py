"""What the server's middleware hands on."""

import asyncio

from hf_speculative.serving.guard import Guard


def test_a_client_that_left_is_gone_whenever_it_is_asked_for():
    """Once, the second question waited for ever."""
    heard = []

    async def app(scope, receive, send):
        heard.extend([(await receive())["type"] for _ in range(3)])

    async def call():
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}

        async def receive():
            return messages.pop(0)

        async def send(message):
            pass

        await asyncio.wait_for(Guard(app, None, max_body=100, max_requests=1)(scope, receive, send), timeout=10)

    asyncio.run(call())
    assert heard == ["http.request", "http.disconnect", "http.disconnect"]
