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
        compile: compile passes; "auto": use a compiled file if there is one, and make it in the background.
        captures: capture passes as CUDA graphs.
    """

    has_kernel: bool = False
    compile: bool | str = False
    captures: bool = False


EAGER = Execution()


def execution_of(optimize: bool | str | None, device: torch.device) -> Execution:
    """What `optimize` means on `device`; `None` and False are the model's own eager passes.

    On a GPU "auto" is eager: compiled and captured passes have not been measured there.
    """
    is_auto = optimize == "auto"
    if not optimize or (is_auto and (device.type != "cpu" or os.environ.get(artifacts.FOLDER) == artifacts.OFF)):
        return EAGER
    if device.type == "cuda":
        return Execution(compile=True, captures=True)
    return Execution(has_kernel=True, compile="auto" if is_auto else True)
