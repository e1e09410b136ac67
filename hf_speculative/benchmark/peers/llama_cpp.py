"""llama.cpp, plain or with the draft, by xllamacpp: its own server and loop in C++, in this process.

It has as many threads as torch, the pair's own type of numbers, and reads the prompt anew in each call.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from . import gguf_file
from .kept import Folder, made_once

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from ..cells import Cell
    from ..pairs import Pair


def generate(pair: Pair, cell: Cell, call: dict[str, Any], drafts: bool = True):
    """The ids of `call`, with new ones."""
    import torch

    folder = made_once(pair, cell, "llama.cpp", partial(_written, pair))
    what = ("llama.cpp", cell.num_draft_tokens if drafts else 0, cell.batch, cell.context)
    server = made_once(pair, cell, what, partial(_server, folder, pair, cell, drafts, call["max_new_tokens"]))
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(call["input_ids"], call["attention_mask"], strict=True)]
    found = server.handle_completions(
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


def _server(folder: Folder, pair: Pair, cell: Cell, drafts: bool, num_new_tokens: int):
    import torch
    import xllamacpp as package

    settings = package.CommonParams()
    settings.model.path = str(folder.path / "target.gguf")
    settings.n_parallel = cell.batch
    settings.n_ctx = cell.batch * (cell.context + num_new_tokens + cell.num_draft_tokens + 1)
    settings.cache_prompt, settings.cache_ram_mib = False, 0
    settings.verbosity = -1
    threads = [settings.cpuparams, settings.cpuparams_batch]
    caches = [settings]
    if drafts:
        speculative = settings.speculative
        speculative.types = [package.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculative.draft.mparams.path = str(folder.path / "draft.gguf")
        speculative.draft.n_min = speculative.draft.n_max = cell.num_draft_tokens
        speculative.draft.p_min = 0.0  # never fewer, for lack of confidence
        threads += [speculative.draft.cpuparams, speculative.draft.cpuparams_batch]
        caches.append(speculative.draft)
    for one in threads:
        one.n_threads = torch.get_num_threads()
    if pair.target.dtype == torch.float32:  # else llama.cpp's own default, float16
        for cache in caches:
            cache.cache_type_k = cache.cache_type_v = package.ggml_type.GGML_TYPE_F32
    return package.Server(settings)
