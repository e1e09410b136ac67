"""A tiny target and draft that come with the package, for demonstrations and tests; see README.md in this folder."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..models.loading import load_model

FOLDER = Path(__file__).parent
#: prompts that the pair can continue
DEMO_PROMPTS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
)


def embedded_pair(
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Target, draft and their tokenizer: Llama-type models trained on the Python standard library's own source.

    Stored in half precision; loaded as `dtype`, on the CPU, in eval mode.
    """
    target, draft = (load_model(FOLDER / name, dtype=dtype) for name in ("target", "draft"))
    return target, draft, AutoTokenizer.from_pretrained(FOLDER / "target")
