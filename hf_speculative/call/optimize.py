"""The option `optimize`: how passes run on a device, and packed weights of an attached model."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..models import artifacts, packing


@dataclass(frozen=True)
class Execution:
    """How the passes of a call are executed.

    Attributes:
        packs: pack the linear layers of an attached model that are faster packed.
        compile: compile passes; "auto": use a compiled file if there is one, and make it in the background.
        captures: capture passes as CUDA graphs.
    """

    packs: bool = False
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
    return Execution(packs=True, compile="auto" if is_auto else True)


def pack(model: PreTrainedModel, execution: Execution) -> None:
    """Pack the weights of `model` as a call reads them, those that were read since again."""
    is_ahead = execution.packs and bool(execution.compile) and artifacts.unsupported_reason(model) is None
    if execution.packs and (is_ahead or execution.compile is not True):
        packing.pack_weights(model, has_small=is_ahead)
