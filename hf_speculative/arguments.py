"""Options that commands share: judged before anything is loaded, loaded, explained. Importing this imports nothing heavy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: what `--dtype` takes: names in torch
DTYPES = ("float32", "bfloat16", "float16")


def check_dtype(dtype: str) -> None:
    """Raises a ValueError for a dtype that is none of `DTYPES`; empty is the default."""
    if dtype and dtype not in DTYPES:
        raise ValueError(f"--dtype {dtype}: choose one of {', '.join(DTYPES)}.")


def check_device(device: str) -> None:
    """Whether this machine has it; empty is any.

    Raises:
        ValueError: torch knows no such device, or finds none.
    """
    import torch

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


def load_pair(
    model: str | None, draft_model: str | None, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """What `--model`, `--draft-model`, `--dtype` and `--device` name, with the target's tokenizer; without models, the embedded
    pair.

    Raises:
        ValueError: one model without the other, or a device that is not there.
    """
    import torch
    from transformers import AutoTokenizer

    from .embedded import embedded_pair
    from .loading import load_model

    if (model is None) != (draft_model is None):
        raise ValueError("--model and --draft-model go together: give both, or none for the embedded pair.")
    check_device(device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch_dtype = getattr(torch, dtype)
    if model is None or draft_model is None:
        target, draft, tokenizer = embedded_pair(dtype=torch_dtype)
    else:
        target, draft = (load_model(name, dtype=torch_dtype) for name in (model, draft_model))
        tokenizer = AutoTokenizer.from_pretrained(model)
    return target.to(device), draft.to(device), tokenizer


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for a terminal of any width; indented ones stay lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
