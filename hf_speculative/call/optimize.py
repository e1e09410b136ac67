"""The option `optimize`: how passes run on a device, and what multiplies in the linear layers of an attached model."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from ..models import artifacts


@dataclass(frozen=True)
class Execution:
    """How the passes of a call are executed.

    Attributes:
        has_kernel: linear layers of an attached model multiply by our kernel.
        compile: run passes from compiled files, made first; "auto": from those that are there, made in the background.
        captures: capture passes as CUDA graphs.
    """

    has_kernel: bool = False
    compile: bool | str = False
    captures: bool = False


EAGER = Execution()


def execution_of(optimize: bool | str | None, device: torch.device) -> Execution:
    """What `optimize` means on `device`; `None` and False are the model's own eager passes."""
    is_auto = optimize == "auto"
    if not optimize or (
        is_auto and (device.type not in ("cpu", "cuda") or os.environ.get(artifacts.FOLDER) == artifacts.OFF)
    ):
        return EAGER
    if device.type == "cuda":
        return Execution(captures=True)
    return Execution(has_kernel=True, compile=optimize)
