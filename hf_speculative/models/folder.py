"""The folder of what is made for this machine: compiled passes, kernels, costs."""

import os
import platform
from pathlib import Path

from huggingface_hub.constants import HF_HOME

#: the environment variable with the folder of the files; `OFF`: `optimize="auto"` neither uses nor makes files
FOLDER, OFF = "HF_SPECULATIVE_PASSES", "off"


def folder() -> Path:
    named = os.environ.get(FOLDER)
    return Path(named) if named not in (None, "", OFF) else Path(HF_HOME) / "hf_speculative" / "passes"


def processor() -> str:
    """The processor's features, as the system reports them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")
