"""Hash all that compiled passes depend on except weights: code, versions, processor, config, shapes and modules.

The folder of what is made for this machine (compiled passes, kernels, costs) is found here, too.
"""

import hashlib
import json
import os
import platform
import sys
from pathlib import Path

import torch
import transformers
from huggingface_hub.constants import HF_HOME
from torch import nn
from transformers import PretrainedConfig

from ..hf_compat import attention_name
from ..version import __version__

#: the environment variable with the folder of the files; `OFF`: `optimize="auto"` neither uses nor makes files
FOLDER, OFF = "HF_SPECULATIVE_PASSES", "off"
#: fields of a model's config that change nothing of its passes
NOT_OF_PASSES = {"_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "dtype"}
#: fields of the config that change nothing of a layer
NOT_OF_LAYERS = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
#: attributes that change nothing of a module
NOT_OF_MODULES = ("name_or_path", "layer_idx", "num_layers", "call", "samples", "recorded")
#: modules whose source decides what is compiled
OWN = ["exported", "traced", "traced_cache", "pieces", "masks", "attention", "linears", "native"]
OWN += ["steps", "stepped", "written", "recurrent_cache", "ragged_cache", "positions", "shallow", "cached_model"]


def folder() -> Path:
    named = os.environ.get(FOLDER)
    return Path(named) if named not in (None, "", OFF) else Path(HF_HOME) / "hf_speculative" / "passes"


def processor() -> str:
    """The processor's features, as the system reports them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")


def described(model: nn.Module, config: PretrainedConfig, *others: str) -> str:
    """Hash all that passes of `model` depend on.

    Args:
        others: further fields of the config that change nothing of them.
    """
    tensors = *model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)
    depends_on = {
        "versions": [__version__, torch.__version__, transformers.__version__, platform.python_version()],
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability(), processor()],
        "config": {name: value for name, value in config.to_dict().items() if name not in {*NOT_OF_PASSES, *others}},
        "attention": attention_name(config),
        "sources": _sources(model),
        "tensors": [(name, str(t.dtype), list(t.shape), t.is_contiguous() or t.stride()) for name, t in tensors],
        "modules": [(name, type(m).__module__, type(m).__qualname__, _settings(m)) for name, m in model.named_modules()],
    }
    return f"{type(model).__name__}-{digest(depends_on)[:24]}"


def digest(described) -> str:
    """Hash a value that can be written as JSON."""
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=repr).encode()).hexdigest()


def _settings(module: nn.Module) -> dict:
    """The numbers, texts and flags set on a module, which a trace treats as constants."""
    plain = (bool, int, float, str, type(None), tuple)
    named = ((name, value) for name, value in vars(module).items() if name[0] != "_" and name not in NOT_OF_MODULES)
    return {name: value for name, value in named if isinstance(value, plain)}


def _sources(model: nn.Module) -> str:
    """Hash the files that define the modules, and ours."""
    names = {type(module).__module__ for module in model.modules()}
    files = {getattr(sys.modules[name], "__file__", None) for name in names if not name.startswith("torch.")}
    own = [str(Path(__file__).parent / f"{name}.py") for name in OWN]
    texts = [Path(name).read_bytes() for name in sorted(filter(None, files)) + own if Path(name).exists()]
    return hashlib.sha256(b"".join(texts)).hexdigest()
