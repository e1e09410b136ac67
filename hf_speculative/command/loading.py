"""Load the models that options name. Importing this imports nothing heavy."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..call.option_table import DRAFTS, checked
from ..names import EXAMPLES, place_of
from .checks import naming
from .settings import Machine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def loadable(name: str) -> str:
    """The folder or repository that a name stands for: of an embedded model, of an example, or itself."""
    if name not in EXAMPLES or Path(name).exists():
        return place_of(name)
    from ..embedded import place_of_example

    return place_of_example(name)


def load_embedded(machine: Machine, head: bool = False) -> "tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]":
    """The embedded target, its draft model or draft head, and their tokenizer."""
    import torch

    from ..embedded import embedded_pair

    place = machine.place()
    target, draft, tokenizer = embedded_pair(getattr(torch, machine.dtype or "float32"), head)
    return target.to(place), draft.to(place), tokenizer


def load_target(name: str, machine: Machine) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model that the option or argument `model` names, and its tokenizer."""
    import torch
    from transformers import AutoTokenizer

    from ..models.loading import load_model

    with naming("`model`", name):
        dtype = getattr(torch, machine.dtype) if machine.dtype else "auto"
        target = load_model(loadable(name), dtype=dtype).to(machine.place())
        return target, AutoTokenizer.from_pretrained(loadable(name), trust_remote_code=False)


def load_pair(
    model: str | None, draft_model: str | None, machine: Machine, needs_draft: bool = False, head: bool = False
) -> "tuple[PreTrainedModel, Any, PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]":
    """What the options of a command for two models name; without models, the embedded pair.

    Args:
        needs_draft: a target alone is not enough.
        head: of the embedded pair, the draft head instead of the draft model.

    Returns:
        The target; the draft as `generate` takes it, a model, methods that need none, or both; the target's tokenizer; the
        draft's, where it differs.

    Raises:
        ValueError: one model without the other, one that cannot be loaded, or a device that is not there.
    """
    from transformers import PreTrainedModel

    from ..call.preparation import load_draft
    from ..tokenizers.loading import tokenizer_of_draft

    named, methods = (None, None) if draft_model is None else DRAFTS.split(checked("draft_model", draft_model))
    is_alone = model is not None and named is None and methods is None and needs_draft
    if is_alone or (model is None and named is not None):
        raise ValueError("`model` and `draft_model` go together: give both, or none for the embedded pair.")
    if model is None:
        target, draft, tokenizer = load_embedded(machine, head)
        return target, methods or draft, tokenizer, None
    target, tokenizer = load_target(model, machine)
    if named is None:
        return target, methods, tokenizer, None
    draft = load_draft(loadable(named), target)
    other = tokenizer_of_draft(loadable(named), tokenizer) if isinstance(draft, PreTrainedModel) else None
    return target, draft if methods is None else (draft, methods), tokenizer, other
