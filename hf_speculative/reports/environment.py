"""Describe the environment of a measurement."""

import datetime
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ..version import __version__


def environment(model: PreTrainedModel) -> dict[str, Any]:
    """Versions, hardware, threads and dtype, the day, and the command line that is running."""
    on_gpu = model.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(model.device) if on_gpu else _cpu_name(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "hf_speculative": __version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "command": _command(),
    }


def _commit() -> str | None:
    """The commit of a checkout, with a + if files were changed; `None` of an installed package."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists() or shutil.which("git") is None:
        return None
    git = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None


def _command() -> str:
    program = Path(sys.argv[0])
    start = ["python", program.name] if program.suffix == ".py" else [program.name]
    if program.name == "__main__.py":
        start = ["python", "-m", program.parent.name]
    return shlex.join([*start, *sys.argv[1:]])


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
