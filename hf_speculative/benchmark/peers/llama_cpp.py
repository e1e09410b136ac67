"""llama.cpp, plain or with the draft, by xllamacpp: its own server and loop in C++.

It has as many threads as torch, the pair's own type of numbers, and reads the prompt anew in each call. It runs in a process of
its own: both use OpenMP, which wakes threads slowly once it has more of them than processors, and torch would suffer.
"""

from __future__ import annotations

import multiprocessing
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from ..fixtures import Folder, made_once, weights_of
from . import gguf_file

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from ..cells import Cell
    from ..pairs import Pair


def generate(pair: Pair, cell: Cell, call: dict[str, Any], drafts: bool = True):
    """The ids of `call`, with new ones."""
    import torch

    folder = made_once(pair, "llama.cpp", weights_of(cell), partial(_written, pair))
    # One server at a time: each has the weights in memory. A cell's first call is its longest.
    what = f"llama.cpp, {'with' if drafts else 'without'} a draft"
    server = made_once(pair, what, cell, partial(_server, folder, pair, cell, drafts, call["max_new_tokens"]))
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(call["input_ids"], call["attention_mask"], strict=True)]
    found = server(
        {
            "prompt": prompts,
            "n_predict": call["max_new_tokens"],
            "temperature": cell.temperature,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "cache_prompt": False,
        }
    )
    if "choices" not in found:
        raise RuntimeError(f"llama.cpp: {found}")
    texts = [choice["text"] for choice in sorted(found["choices"], key=lambda choice: choice["index"])]
    return torch.cat([call["input_ids"], torch.tensor([gguf_file.tokens_of(text) for text in texts])], 1)


def _written(pair: Pair) -> Folder:
    folder = Folder()
    for name, model in (("target", pair.target), ("draft", pair.draft)):
        gguf_file.write(model, folder.path / f"{name}.gguf")
    return folder


def _server(folder: Folder, pair: Pair, cell: Cell, drafts: bool, num_new_tokens: int) -> Remote:
    import torch

    return Remote(
        {
            "target": str(folder.path / "target.gguf"),
            "draft": str(folder.path / "draft.gguf") if drafts else None,
            "num_rows": cell.batch,
            "num_draft_tokens": cell.num_draft_tokens,
            "num_tokens": cell.batch * (cell.context + num_new_tokens + cell.num_draft_tokens + 1),
            "num_threads": torch.get_num_threads(),
            "in_float32": pair.target.dtype == torch.float32,
        }
    )


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
    if asked["in_float32"]:  # else llama.cpp's own default, float16
        for cache in caches:
            cache.cache_type_k = cache.cache_type_v = package.ggml_type.GGML_TYPE_F32
    return package.Server(settings)
