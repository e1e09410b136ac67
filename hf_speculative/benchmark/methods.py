"""The ways to decode that are compared. A way of your own is one more `Method`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .cells import Cell
    from .pairs import Pair


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        name: what to call it, on the command line and in tables.
        generate: takes the pair, the cell and the keywords of a `generate` call, and generates `max_new_tokens` for each row.
        description: for the help and the report.
        is_speculative: it drafts. What does not is compared with plain decoding, and never called a loss of ours.
        is_ours: it goes through `hf_speculative`; a loss against assisted generation is then named, too.
        counts_passes: its target passes are forwards of the target's module, which a compiled or captured one is not.
        is_bounded: its target passes run as plain decoding's do and cost no less, so that their number bounds its speedup; one
            that is compiled or captured may cost less.
        max_batch: the largest batch it takes.
    """

    name: str
    generate: Callable[[Pair, Cell, dict[str, Any]], Any]
    description: str
    is_speculative: bool = True
    is_ours: bool = False
    counts_passes: bool = False
    is_bounded: bool = False
    max_batch: int | None = None


def _plain(pair: Pair, cell: Cell, call: dict[str, Any]):
    return pair.target.generate(**call)


def _compiled(pair: Pair, cell: Cell, call: dict[str, Any]):
    from transformers import CompileConfig

    # transformers compiles by itself on a GPU only
    settings = CompileConfig(mode="reduce-overhead" if pair.device.type == "cuda" else "default")
    settings._compile_all_devices = True
    return pair.target.generate(**call, cache_implementation="static", compile_config=settings)


def _assisted(pair: Pair, cell: Cell, call: dict[str, Any]):
    fields = {
        "num_assistant_tokens": cell.num_draft_tokens,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    return pair.target.generate(**call, assistant_model=_assistant(pair.draft, fields))


def _assisted_default(pair: Pair, cell: Cell, call: dict[str, Any]):
    return pair.target.generate(**call, assistant_model=_assistant(pair.draft, {}))


def _assistant(draft: PreTrainedModel, fields: dict[str, Any]) -> PreTrainedModel:
    """The draft under a generation config of its own: assisted generation reads its settings there, and writes them."""
    from ..models.shallow import exchanged

    twin = exchanged(draft, {})
    twin.generation_config = copy.deepcopy(draft.generation_config)
    for name, value in fields.items():
        setattr(twin.generation_config, name, value)
    return twin


def _speculative(pair: Pair, cell: Cell, call: dict[str, Any]):
    return _ours(pair, call, num_draft_tokens=cell.num_draft_tokens)


def _speculative_auto(pair: Pair, cell: Cell, call: dict[str, Any]):
    return _ours(pair, call)


def _speculative_compiled(pair: Pair, cell: Cell, call: dict[str, Any]):
    return _ours(pair, call, num_draft_tokens=cell.num_draft_tokens, compile=True)


def _speculative_captured(pair: Pair, cell: Cell, call: dict[str, Any]):
    return _ours(pair, call, num_draft_tokens=cell.num_draft_tokens, cuda_graphs=True)


def _ours(pair: Pair, call: dict[str, Any], **options):
    from ..generation import generate

    tokenizers = {"tokenizer": pair.tokenizer, "draft_tokenizer": pair.draft_tokenizer}
    of_another = tokenizers if pair.draft_tokenizer is not None else {}
    return generate(pair.target, **call, draft_model=pair.draft, **of_another, **options)


PLAIN = Method("plain", _plain, "transformers' `generate`", is_speculative=False)
COMPILED = Method(
    "plain-compiled", _compiled, "the same with a static cache and a compiled forward", is_speculative=False
)
ASSISTED = Method(
    "assisted",
    _assisted,
    "transformers' assisted generation, at the same constant draft length; batch 1 only",
    counts_passes=True,
    is_bounded=True,
    max_batch=1,
)
ASSISTED_DEFAULT = Method(
    "assisted-default",
    _assisted_default,
    "transformers' assisted generation as it comes; batch 1 only",
    counts_passes=True,
    is_bounded=True,
    max_batch=1,
)
SPECULATIVE = Method(
    "speculative", _speculative, "hf_speculative at the draft length given", is_ours=True, is_bounded=True
)
SPECULATIVE_AUTO = Method(
    "speculative-auto",
    _speculative_auto,
    "hf_speculative as it comes, choosing its own draft length",
    is_ours=True,
    is_bounded=True,
)
SPECULATIVE_COMPILED = Method(
    "speculative-compiled",
    _speculative_compiled,
    "hf_speculative at the draft length given, compiled",
    is_ours=True,
)
SPECULATIVE_CAPTURED = Method(
    "speculative-captured",
    _speculative_captured,
    "hf_speculative at the draft length given, its passes captured as CUDA graphs",
    is_ours=True,
)
OURS = (SPECULATIVE, SPECULATIVE_AUTO, SPECULATIVE_COMPILED, SPECULATIVE_CAPTURED)
METHODS = {method.name: method for method in (PLAIN, COMPILED, ASSISTED, ASSISTED_DEFAULT, *OURS)}
DEFAULT_METHODS = ("plain", "assisted", "speculative", "speculative-auto")


def chosen_methods(methods: Iterable[str | Method]) -> list[Method]:
    """Methods by their names; plain decoding is always among them, first."""
    chosen = [PLAIN]
    for method in methods:
        if isinstance(method, str):
            if method not in METHODS:
                raise ValueError(f"`methods`: {method!r} is not known: choose from {', '.join(METHODS)}.")
            method = METHODS[method]
        if method.name not in {other.name for other in chosen}:
            chosen.append(method)
    return chosen
