"""Options that commands share: judged before anything is loaded, loaded, explained. Importing this imports nothing heavy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..reports.files import check_output

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
    """Whether files can be where these options want them, so that what was measured is not lost for a typo."""
    for option, path in paths.items():
        if path is not None:
            check_output(f"--{option}", path)


@contextmanager
def naming(option: str, name: str) -> Iterator[None]:
    """What cannot be loaded is told with the option that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"{option} {name} cannot be loaded. {error}") from error


def load_pair(
    model: str | None,
    draft_model: str | None,
    dtype: str,
    device: str,
    options: tuple[str, str] = ("--model", "--draft-model"),
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """What `--model`, `--draft-model`, `--dtype` and `--device` name, with the target's tokenizer; without models, the embedded
    pair.

    Args:
        options: what the command calls the first two.

    Raises:
        ValueError: one model without the other, one that cannot be loaded, or a device that is not there.
    """
    import torch
    from transformers import AutoTokenizer

    from ..embedded import embedded_pair
    from ..models.loading import load_model

    if (model is None) != (draft_model is None):
        raise ValueError("--model and --draft-model go together: give both, or none for the embedded pair.")
    check_device(device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch_dtype = getattr(torch, dtype)
    if model is None or draft_model is None:
        target, draft, tokenizer = embedded_pair(dtype=torch_dtype)
    else:
        with naming(options[0], model):
            target = load_model(model, dtype=torch_dtype)
            tokenizer = AutoTokenizer.from_pretrained(model)
        with naming(options[1], draft_model):
            draft = load_model(draft_model, dtype=torch_dtype)
    return target.to(device), draft.to(device), tokenizer


def help_of(command: Callable) -> str:
    """The docstring with the lines of a paragraph joined, for a terminal of any width; indented ones stay lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(command) or "")
