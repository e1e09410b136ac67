"""llama.cpp beside ours with the embedded pair, by xllamacpp: `pip install xllamacpp gguf`.

python examples/bench/peer_llama_cpp.py --batch 1

It has as many threads as torch, and reads the prompt anew in each call. It runs in a process of its own: both use OpenMP, which
wakes threads slowly once it has more of them than processors, and torch would suffer.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import weakref
from pathlib import Path
from typing import Annotated, Any

import gguf_file
import torch
import typer
from compare import show, timed_rival

import hf_speculative as hs
from hf_speculative.measuring.bench import prompts


def main(
    draft_tokens: Annotated[int, typer.Option(help="Draft length, the same for both.")] = 4,
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 3,
):
    """Compare with llama.cpp's server, plain and with the draft, greedy."""
    target, draft, tokenizer = hs.embedded_pair()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.gguf" for name in ("target", "draft")}
        for name, model in (("target", target), ("draft", draft)):
            gguf_file.write(model, paths[name])
        asked = {
            "target": str(paths["target"]),
            "num_rows": batch,
            "num_draft_tokens": draft_tokens,
            "num_tokens": batch * (context + new_tokens + draft_tokens + 1),
            "num_threads": torch.get_num_threads(),
        }
        rivals = [rival("llama.cpp, plain", asked | {"draft": None})]
        rivals += [rival("llama.cpp, with the draft", asked | {"draft": str(paths["draft"])})]
        texts = prompts(tokenizer, batch, context)
        show(target, draft, tokenizer, texts, rivals, draft_tokens, new_tokens, repeats=repeats)


def rival(name: str, asked: dict[str, Any]):
    """llama.cpp's server as a way to decode."""
    server = Remote(asked)

    def new_ids(call: dict[str, Any]) -> list[list[int]]:
        rows = zip(call["input_ids"], call["attention_mask"], strict=True)
        found = server(
            {
                "prompt": [ids[mask.bool()].tolist() for ids, mask in rows],
                "n_predict": call["max_new_tokens"],
                "temperature": 0.0,
                "samplers": ["temperature"],
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        if "choices" not in found:
            raise RuntimeError(f"llama.cpp: {found}")
        choices = sorted(found["choices"], key=lambda choice: choice["index"])
        return [gguf_file.tokens_of(choice["text"]) for choice in choices]

    return timed_rival(name, new_ids)


class Remote:
    """A server in a process that ends with this object. Called with a request, it gives the answer."""

    def __init__(self, asked: dict[str, Any]):
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, asked), daemon=True)
        self.process.start()
        theirs.close()
        weakref.finalize(self, self.process.terminate)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.connection.send(request)
        try:
            return self.connection.recv()
        except EOFError:
            raise RuntimeError("llama.cpp ended; what it said is above") from None


def serve(connection, asked: dict[str, Any]) -> None:
    """Answers requests, until nobody asks any more."""
    server = made(asked)
    while True:
        try:
            connection.send(server.handle_completions(connection.recv()))
        except EOFError:
            return


def made(asked: dict[str, Any]):
    """xllamacpp's server, as it is `asked` for."""
    import xllamacpp as package

    settings = package.CommonParams()
    settings.model.path = asked["target"]
    settings.n_parallel = asked["num_rows"]
    settings.n_ctx = asked["num_tokens"]
    settings.cache_prompt, settings.cache_ram_mib = False, 0
    settings.verbosity = -1
    threads = [settings.cpuparams, settings.cpuparams_batch]
    caches = [settings]
    if asked["draft"]:
        speculative = settings.speculative
        speculative.types = [package.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path = asked["draft"]
        speculative.draft.n_min = speculative.draft.n_max = asked["num_draft_tokens"]
        speculative.draft.p_min = 0.0  # never fewer, for lack of confidence
        threads += [speculative.draft.cpuparams, speculative.draft.cpuparams_batch]
        caches.append(speculative.draft)
    for one in threads:
        one.n_threads = asked["num_threads"]
    for cache in caches:  # as the embedded pair's weights
        cache.cache_type_k = cache.cache_type_v = package.ggml_type.GGML_TYPE_F32
    return package.Server(settings)


if __name__ == "__main__":
    typer.run(main)
