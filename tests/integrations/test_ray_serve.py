"""`examples/serve_replicas.py`: two replicas on one machine, of which one is killed under load."""

import asyncio
import os
import signal
import time

import httpx
import psutil
import pytest

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve", reason="pip install 'ray[serve]'", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PORT, BODY = 8123, {"prompt": "def main():\n", "max_tokens": 48}


@pytest.fixture
def url():
    import serve_replicas

    ray.cloudpickle.register_pickle_by_value(serve_replicas)  # its folder is on no replica's path
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
    serve.start(http_options={"port": PORT})
    serve.run(serve_replicas.deployment(serve_replicas.build, num_replicas=2))
    yield f"http://localhost:{PORT}"
    serve.shutdown()
    ray.shutdown()


def replicas():
    names = [(one, " ".join(one.cmdline())) for one in psutil.Process().children(recursive=True)]
    return [one for one, name in names if "ServeReplica" in name and "Replica" in name.split(":")[-1]]


def test_no_request_is_lost_whose_answer_had_not_begun(url):
    async def under_load():
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            asked = [asyncio.create_task(client.post("/v1/completions", json=BODY)) for _ in range(24)]
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) < len(asked)
            found = replicas()
            assert len(found) == 2
            os.kill(found[0].pid, signal.SIGKILL)
            return await asyncio.gather(*asked)

    answers = asyncio.run(under_load())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    until = time.monotonic() + 120
    while len(replicas()) < 2:
        assert time.monotonic() < until, "a new replica takes its place"
        time.sleep(0.5)
    with httpx.stream("POST", f"{url}/v1/completions", json=BODY | {"stream": True}, timeout=120) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and len(lines) > 3
