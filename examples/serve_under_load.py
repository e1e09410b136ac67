"""Many clients at once: this package's server beside `transformers serve`, on the same model and the same requests.

    python examples/serve_under_load.py                                    # the embedded pair
    python examples/serve_under_load.py --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --clients 64
    python examples/serve_under_load.py --model smollm2 --schema           # answers that keep to a JSON schema: ours alone

Each server is started in turn, warmed up, and asked by the `openai` package. Greedy answers are compared with `model.generate`
on each prompt alone. Needs `pip install 'hf_speculative[serving]' 'transformers[serving]'`, and `[grammar]` for schemas.
"""

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.request import urlopen

import torch
import typer
from openai import AsyncOpenAI, OpenAIError
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_speculative as hs
from hf_speculative.embedded import EXAMPLES, FOLDER, place_of_example

PROMPTS = [
    "def read(path):\n    ",
    "import os\n",
    "class Node:\n    def __init__(self, ",
    "for line in lines:\n",
    "try:\n",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "file_name": {"type": "string", "maxLength": 20},
        "number_of_lines": {"type": "integer", "minimum": 0, "maximum": 9999},
        "programming_language": {"enum": ["python", "c", "rust"]},
        "is_generated": {"type": "boolean"},
    },
    "required": ["file_name", "number_of_lines", "programming_language", "is_generated"],
    "additionalProperties": False,
}
TRANSFORMERS, NAME = "transformers serve", "served"


@contextmanager
def served(command: list[str]) -> Iterator[int]:
    """A server on a free port, once it answers."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(f"http://localhost:{port}/health"):
            if process.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended before it answered")
            time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        return urlopen(url).status == 200
    except OSError:
        return False


async def ask(port: int, model: str, prompts: list[str], lengths: list[int], num_clients: int, body: dict):
    """All answers, `None` for one that failed, and the seconds each took, `num_clients` requests at a time."""
    url = f"http://localhost:{port}/v1"
    turn = asyncio.Semaphore(num_clients)

    async def one(prompt: str, length: int):
        async with turn:
            start = time.perf_counter()
            settings = {"max_tokens": length, "temperature": 0, "extra_body": body}
            try:
                answer = await client.completions.create(model=model, prompt=prompt, **settings)
            except OpenAIError:
                return None, time.perf_counter() - start
            return answer, time.perf_counter() - start

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        return await asyncio.gather(*(one(*job) for job in zip(prompts, lengths, strict=True)))


def alone(model: str, prompts: list[str], lengths: list[int], grammar: dict | None) -> list[str]:
    """What plain `generate` gives for each prompt."""
    target, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        AutoTokenizer.from_pretrained(model),
    )
    texts = {}
    for prompt, length in set(zip(prompts, lengths, strict=True)):
        inputs = tokenizer(prompt, return_tensors="pt")
        keywords = {"do_sample": False, "max_new_tokens": length}
        if grammar is None:
            out = target.generate(**inputs, **keywords)
        else:
            out = hs.generate(target, **inputs, **keywords, grammar=grammar, tokenizer=tokenizer, draft_model=None)
        texts[prompt, length] = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [texts[job] for job in zip(prompts, lengths, strict=True)]


def main(
    model: Annotated[str, typer.Option(help="The model to serve: a Hub name or folder.")] = "",
    draft_model: Annotated[str, typer.Option(help="Its draft. Without one, drafts come from text.")] = "",
    clients: Annotated[int, typer.Option(help="Requests under way at a time.")] = 32,
    requests: Annotated[int, typer.Option(help="Requests in all.")] = 128,
    max_tokens: Annotated[int, typer.Option(help="Tokens of the longest answers.")] = 64,
    schema: Annotated[bool, typer.Option(help="Ask for JSON of a schema, which `transformers serve` cannot.")] = False,
):
    """Print requests per second, tokens per second, latency, errors and equality of each server."""
    if not model:
        model, draft_model = str(FOLDER / "target"), str(FOLDER / "draft")
    elif model in EXAMPLES:
        model = place_of_example(model)
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "file", "schema": SCHEMA}}} if schema else {}
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    lengths = [max(1, max_tokens >> (i % 3)) for i in range(requests)]
    common = [model, "--dtype", "float32"]
    commands = {TRANSFORMERS: [sys.executable, "-m", "transformers.cli.transformers", "serve", *common]}
    ours = [sys.executable, "-m", "hf_speculative", "serve", *common, "--name", NAME]
    commands |= {"hf-speculative serve, auto": ours}
    if draft_model:
        commands |= {"hf-speculative serve, draft": [*ours, "--draft-model", draft_model]}
    if schema:
        del commands[TRANSFORMERS]
    expected = alone(model, prompts, lengths, SCHEMA if schema else None)
    table = Table(title=f"{requests} requests of up to {max_tokens} tokens" + ", JSON of a schema" * schema)
    for heading in ("server", "clients", "seconds", "tokens/s", "median s a request", "errors", "equal to generate"):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for name, command in commands.items():
        with served(command) as port:
            asked = model if name == TRANSFORMERS else NAME
            asyncio.run(ask(port, asked, prompts[:4], lengths[:4], 2, body))
            for num_clients in (1, clients):
                start = time.perf_counter()
                replies = asyncio.run(ask(port, asked, prompts, lengths, num_clients, body))
                seconds = time.perf_counter() - start
                found = [answer and answer.choices[0].text for answer, _ in replies]
                num_tokens = sum(answer.usage.completion_tokens for answer, _ in replies if answer)
                num_equal = sum(text == other for text, other in zip(found, expected, strict=True))
                table.add_row(
                    name,
                    str(num_clients),
                    f"{seconds:.1f}",
                    f"{num_tokens / seconds:.0f}",
                    f"{statistics.median(took for _, took in replies):.2f}",
                    str(found.count(None)),
                    f"{num_equal} of {requests}",
                )
    Console(width=max(100, Console().width)).print(table)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    typer.run(main)
