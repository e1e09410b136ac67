"""Options of the commands that can be judged before anything is loaded, and their help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import torch

from .files import check_output


def check_device(device: str) -> None:
    """Whether this machine has it; empty is any.

    Raises:
        ValueError: torch knows no such device, or finds none.
    """
    try:
        torch.empty(0, device=device or None)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from error


def check_outputs(**paths: Path | None) -> None:
    """Whether files can be where these options want them, so that what was measured is not lost for a typo."""
    for option, path in paths.items():
        if path is not None:
            check_output(f"--{option}", path)


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for a terminal of any width; indented ones stay lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
