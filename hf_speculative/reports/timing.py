"""Time work on a device."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """What `call` returns, and the seconds until the device has done all of it."""
    wait_for(device)
    start = time.perf_counter()
    result = call()
    wait_for(device)
    return result, time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
