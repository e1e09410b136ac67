"""The option `optimize`: how passes run on a device, and what multiplies in the linear layers of an attached model."""

from __future__ import annotations

import os

import torch

from ..models import artifacts
from ..models.execution import EAGER, Execution


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
