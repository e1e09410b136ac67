"""A tiny target, a draft and a draft head that come with the package, for demonstrations and tests; see README.md here."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..models.loading import load_model

FOLDER = Path(__file__).parent
#: an EAGLE-3 head for the target, for `draft_model=`
HEAD = FOLDER / "head"


def embedded_pair(
    dtype: torch.dtype = torch.float32, head: bool = False
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Target, draft and their tokenizer: a Llama-type model trained on Python source, and one that guesses what it writes.

    Stored in half precision; loaded as `dtype`, on the CPU, in eval mode.

    Args:
        head: the draft is the target's EAGLE-3 head instead, which guesses more and costs less.
    """
    target = load_model(FOLDER / "target", dtype=dtype)
    draft = load_model(HEAD if head else FOLDER / "draft", dtype=dtype)
    return target, draft, AutoTokenizer.from_pretrained(FOLDER / "target")
