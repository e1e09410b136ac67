"""Other packages that decode with a draft, measured on the same pair: each is there where it is installed.

What a peer needs of the pair is written once to a temporary folder, and goes with the pair. Its tokens are compared with plain
decoding's, see `measure.py`.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from .cells import Cell
    from .pairs import Pair

_ready: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
#: names the Python of another environment, whose optimum-intel exports models for OpenVINO: it needs an older transformers
EXPORTER = "HF_SPECULATIVE_OPENVINO_PYTHON"


def why_missing(package: str) -> str | None:
    """What to do where a peer is not installed; `None` if it is."""
    if importlib.util.find_spec(package) is None:
        return f"it needs {package}: pip install 'hf_speculative[peers]'"
    if package == "openvino_genai" and not os.environ.get(EXPORTER):
        return (
            "its models are exported by optimum-intel, which needs an older transformers: python -m venv exporter; "
            f"exporter/bin/pip install optimum-intel[openvino]; export {EXPORTER}=$PWD/exporter/bin/python"
        )
    return None


def _folder(pair: Pair) -> Path:
    """With the pair's models in `target` and `draft`; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="hf_speculative-peers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pair.target.save_pretrained(folder / "target")
    pair.draft.save_pretrained(folder / "draft")
    return folder


def economize(pair: Pair, cell: Cell, call: dict[str, Any]):
    """economize (Laitenberger 2026), which takes its draft model by name and drafts a constant number of tokens."""
    import economize as package
    from economize.techniques.draft_model import DraftModelConfig

    if pair not in _ready:
        _ready[pair] = package.apply(pair.target, DraftModelConfig(model=str(_folder(pair) / "draft")))
    settings: dict[str, Any] = {"cycle_length": cell.num_draft_tokens + 1}
    if cell.temperature:
        settings["verifier"] = "rejection"
    return _ready[pair].generate(**call, decoding=package.DecodeConfig(**settings))


def openvino(pair: Pair, cell: Cell, call: dict[str, Any], drafts: bool = True):
    """OpenVINO GenAI, plain or with the draft, on as many threads as torch has and in the pair's own type of numbers."""
    import numpy as np
    import openvino_genai as package
    import torch
    from openvino import Tensor

    pipelines = _ready.setdefault(pair, {})
    if drafts not in pipelines:
        pipelines[drafts] = _pipeline(pipelines.setdefault("folder", _exported(pair)), pair, drafts)
    settings: dict[str, Any] = {"num_assistant_tokens": cell.num_draft_tokens} if drafts else {}
    if cell.temperature:
        settings |= {"do_sample": True, "temperature": cell.temperature, "top_p": 1.0, "top_k": 2**31 - 1}
    ids, mask = (np.ascontiguousarray(call[name].numpy()) for name in ("input_ids", "attention_mask"))
    config = package.GenerationConfig(
        max_new_tokens=call["max_new_tokens"], ignore_eos=True, apply_chat_template=False, **settings
    )
    new = pipelines[drafts].generate(package.TokenizedInputs(Tensor(ids), Tensor(mask)), config).tokens
    return torch.cat([call["input_ids"], torch.tensor(new)], 1)


def _exported(pair: Pair) -> Path:
    """A folder with `target` and `draft` as OpenVINO reads them, and a tokenizer, since it asks for one."""
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer

    from ..embedded import embedded_pair

    source = _folder(pair)
    tokenizers = convert_tokenizer(pair.tokenizer or embedded_pair()[2], with_detokenizer=True)
    for name in ("target", "draft"):
        command = [os.environ[EXPORTER], "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(source / name), "--task", "text-generation-with-past", "--weight-format"]
        command += ["fp32" if pair.target.dtype.itemsize == 4 else "fp16", str(source / "openvino" / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"optimum-intel could not export the {name}: {done.stderr.strip().splitlines()[-1:]}")
        for part, model in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
            save_model(model, source / "openvino" / name / f"openvino_{part}.xml")
    return source / "openvino"


def _pipeline(folder: Path, pair: Pair, drafts: bool):
    import openvino_genai as package
    import torch

    numbers = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[pair.target.dtype]
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": numbers,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    if drafts:
        settings["draft_model"] = package.draft_model(str(folder / "draft"), "CPU", **settings)
    # Its own default keeps prompts for later calls: each repeat but the first would be without the prompt's pass.
    settings["scheduler_config"] = package.SchedulerConfig()
    settings["scheduler_config"].enable_prefix_caching = False
    settings["scheduler_config"].max_num_batched_tokens = 2**31 - 1
    return package.LLMPipeline(str(folder / "target"), "CPU", **settings)
