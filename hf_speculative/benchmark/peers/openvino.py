"""OpenVINO GenAI, plain or with the draft, on as many threads as torch has and in the pair's own type of numbers."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

from ..fixtures import Folder, made_once, weights_of
from . import EXPORTER

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from ..cells import Cell
    from ..pairs import Pair


def generate(pair: Pair, cell: Cell, call: dict[str, Any], drafts: bool = True):
    """The ids of `call`, with new ones."""
    import numpy as np
    import openvino_genai as package
    import torch
    from openvino import Tensor

    weights = weights_of(cell)
    folder = made_once(pair, "openvino", weights, partial(_exported, pair))
    what = f"openvino, {'with' if drafts else 'without'} a draft"
    pipeline = made_once(pair, what, weights, partial(_pipeline, folder, pair, drafts))
    settings: dict[str, Any] = {"num_assistant_tokens": cell.num_draft_tokens} if drafts else {}
    if cell.temperature:
        settings |= {"do_sample": True, "temperature": cell.temperature, "top_p": 1.0, "top_k": 2**31 - 1}
    ids, mask = (np.ascontiguousarray(call[name].numpy()) for name in ("input_ids", "attention_mask"))
    config = package.GenerationConfig(
        max_new_tokens=call["max_new_tokens"], ignore_eos=True, apply_chat_template=False, **settings
    )
    new = pipeline.generate(package.TokenizedInputs(Tensor(ids), Tensor(mask)), config).tokens
    return torch.cat([call["input_ids"], torch.tensor(new)], 1)


def _exported(pair: Pair) -> Folder:
    """With `target` and `draft` as OpenVINO reads them, and a tokenizer, since it asks for one."""
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer

    from ...embedded import embedded_pair

    source, folder = Folder(), Folder()
    tokenizers = convert_tokenizer(pair.tokenizer or embedded_pair()[2], with_detokenizer=True)
    for name, model in (("target", pair.target), ("draft", pair.draft)):
        model.save_pretrained(source.path / name)
        command = [os.environ[EXPORTER], "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(source.path / name), "--task", "text-generation-with-past", "--weight-format"]
        command += ["fp32" if pair.target.dtype.itemsize == 4 else "fp16", str(folder.path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"optimum-intel could not export the {name}: {done.stderr.strip().splitlines()[-1:]}")
        for part, tokenizer in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
            save_model(tokenizer, folder.path / name / f"openvino_{part}.xml")
    return folder


def _pipeline(folder: Folder, pair: Pair, drafts: bool):
    import openvino_genai as package
    import torch

    numbers = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[pair.target.dtype]
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": numbers,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    if drafts:
        settings["draft_model"] = package.draft_model(str(folder.path / "draft"), "CPU", **settings)
    # Its own default keeps prompts for later calls: each repeat but the first would be without the prompt's pass.
    settings["scheduler_config"] = package.SchedulerConfig()
    settings["scheduler_config"].enable_prefix_caching = False
    settings["scheduler_config"].max_num_batched_tokens = 2**31 - 1
    return package.LLMPipeline(str(folder.path / "target"), "CPU", **settings)
