"""Options of the commands that can be judged before anything is loaded, and their help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import torch


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
    """Whether files can be where these options want them, so that what was measured is not lost for a typo.

    Raises:
        ValueError: a folder, or a file in a folder that is not there.
    """
    for option, path in paths.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"--{option} {path} is a folder: name a file.")
        if not path.parent.is_dir():
            raise ValueError(f"--{option} {path}: there is no folder {path.parent}.")


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for a terminal of any width; indented ones stay lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
