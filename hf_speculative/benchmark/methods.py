"""The ways to decode that are compared. Your own way is one more `Method`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..call.option_table import DRAFTS
from .fixtures import made_once, weights_of
from .peers import economize, llama_cpp, missing_reason, openvino

# What costs an import of torch is imported where it is used: the help of the command lists the methods.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .cells import Cell
    from .pairs import Pair


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        name: its name on the command line and in tables.
        generate: takes the pair, the cell and the keywords of a `generate` call, and generates `max_new_tokens` for each row.
        description: for the help and the report.
        is_speculative: it drafts. Otherwise it is compared with plain decoding, and never called a loss of ours.
        is_ours: it goes through `hf_speculative`. A loss against assisted generation is then reported as well.
        counts_passes: its target passes are forwards of the target's module, which a compiled or captured one is not.
        is_bounded: its target passes cost no less than plain decoding's, so that their number bounds its speedup. Compiled or
            captured passes may cost less.
        max_batch: the largest batch it takes.
        head: the kind of draft head that drafts; a shape's has random weights, and its tokens are kept by lot.
        package: of a peer: another package, which has to be installed, and whose tokens are compared with plain decoding's.
    """

    name: str
    generate: Callable[[Pair, Cell, dict[str, Any]], Any]
    description: str
    is_speculative: bool = True
    is_ours: bool = False
    counts_passes: bool = False
    is_bounded: bool = False
    max_batch: int | None = None
    head: str | None = None
    package: str | None = None


def _compiled(pair: Pair, cell: Cell, call: dict[str, Any]):
    from transformers import CompileConfig

    from ..hf_compat import compile_on_all_devices

    # transformers compiles by itself on a GPU only
    settings = CompileConfig(mode="reduce-overhead" if pair.device.type == "cuda" else "default")
    compile_on_all_devices(settings)
    return pair.target.generate(**call, cache_implementation="static", compile_config=settings)


def _assisted(pair: Pair, call: dict[str, Any], **fields):
    """With a generation config of the draft's own: assisted generation reads and writes its settings there."""
    from ..models.shallow import exchanged

    draft = exchanged(pair.draft, {})
    draft.generation_config = copy.deepcopy(pair.draft.generation_config)
    for name, value in fields.items():
        setattr(draft.generation_config, name, value)
    return pair.target.generate(**call, assistant_model=draft)


def _ours(pair: Pair, call: dict[str, Any], **options):
    from ..call.configuration import as_keywords
    from ..generation import generate

    return generate(pair.target, **call, **as_keywords({"draft_model": pair.draft} | _tokenizers(pair) | options))


def _tokenizers(pair: Pair) -> dict[str, Any]:
    """What a call needs if the draft has a tokenizer of its own."""
    of_another = {"tokenizer": pair.tokenizer, "draft_tokenizer": pair.draft_tokenizer}
    return of_another if pair.draft_tokenizer is not None else {}


def _on_packed_weights(
    pair: Pair, cell: Cell, call: dict[str, Any], drafts: bool, head: str | None = None, is_auto: bool = False
):
    """On copies of both models, since the others are measured on plain weights.

    Args:
        head: the kind of head that drafts, in place of the draft model.
        is_auto: the draft length is chosen, not the cell's.
    """
    how: dict[str, Any] = {} if drafts else {"draft_model": None}
    if head is not None:
        packed = made_once(pair, f"packed {head}", weights_of(cell), partial(_packed_head, pair, head))
        how = _head_options(pair, cell) | {"draft_model": packed}
    if drafts and not is_auto:
        how["num_draft_tokens"] = cell.num_draft_tokens
    return made_once(pair, "packed", weights_of(cell), partial(_packed, pair)).generate(**call, **how)


def _packed(pair: Pair):
    """A copy of the target that a copy of its draft is attached to."""
    from ..call.configuration import SpeculativeConfig
    from ..generation import attach

    target, draft = copy.deepcopy((pair.target, pair.draft))
    config = SpeculativeConfig(pack_weights="auto", compile=True, **_tokenizers(pair))
    attach(target, draft, config=config)
    return target


def _packed_head(pair: Pair, kind: str) -> PreTrainedModel:
    from ..call.configuration import SpeculativeConfig
    from ..call.packed import pack

    head = copy.deepcopy(pair.head(kind))
    pack(head, SpeculativeConfig(pack_weights="auto", compile=True))  # as `attach` does
    return head


def _without_draft(pair: Pair, cell: Cell, call: dict[str, Any], method: str):
    from ..generation import generate
    from ..models.model_state import keeping

    with keeping(pair.target, {}):  # the same prompt comes again and again
        return generate(pair.target, **call, draft_model=method)


def _with_head(pair: Pair, cell: Cell, call: dict[str, Any], kind: str):
    from ..generation import generate

    options = _head_options(pair, cell) | {"draft_model": pair.head(kind), "num_draft_tokens": cell.num_draft_tokens}
    return generate(pair.target, **call, **options)


def _head_options(pair: Pair, cell: Cell) -> dict[str, Any]:
    """What a call with a head of random weights needs, whose tokens are kept by lot."""
    from ..call.configuration import SpeculativeConfig
    from .heads import KeptByLot

    if not pair.keeps_by_lot:
        return {}
    assert cell.acceptance is not None  # a shape's
    return {"speculative_config": SpeculativeConfig(rule=KeptByLot(cell.acceptance), allow_lossy=True)}


#: kinds of draft heads, and what they are
HEADS = {
    "eagle3": "an EAGLE-3 head of one layer",
    "dflash": "a DFlash head of five layers and blocks of 16",
    "mtp": "one MTP layer, used again for each token",
}
PLAIN = Method(
    "plain",
    lambda pair, cell, call: pair.target.generate(**call),
    "transformers' `generate`",
    is_speculative=False,
)
METHODS = {
    method.name: method
    for method in (
        PLAIN,
        Method(
            "plain-compiled", _compiled, "the same with a static cache and a compiled forward", is_speculative=False
        ),
        Method(
            "assisted",
            lambda pair, cell, call: _assisted(
                pair,
                call,
                num_assistant_tokens=cell.num_draft_tokens,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            ),
            "transformers' assisted generation, at the same constant draft length; batch 1 only",
            counts_passes=True,
            is_bounded=True,
            max_batch=1,
        ),
        Method(
            "assisted-default",
            lambda pair, cell, call: _assisted(pair, call),
            "transformers' assisted generation with its defaults; batch 1 only",
            counts_passes=True,
            is_bounded=True,
            max_batch=1,
        ),
        Method(
            "speculative",
            lambda pair, cell, call: _ours(pair, call, num_draft_tokens=cell.num_draft_tokens),
            "hf_speculative at the draft length given",
            is_ours=True,
            is_bounded=True,
        ),
        Method(
            "speculative-auto",
            lambda pair, cell, call: _ours(pair, call),
            "hf_speculative with its defaults, choosing its draft length",
            is_ours=True,
            is_bounded=True,
        ),
        Method(
            "speculative-compiled",
            lambda pair, cell, call: _ours(pair, call, num_draft_tokens=cell.num_draft_tokens, compile=True),
            "hf_speculative at the draft length given, compiled",
            is_ours=True,
        ),
        Method(
            "plain-packed",
            partial(_on_packed_weights, drafts=False),
            "transformers' `generate` on packed weights",
            is_speculative=False,
        ),
        Method(
            "speculative-captured",
            lambda pair, cell, call: _ours(pair, call, num_draft_tokens=cell.num_draft_tokens, cuda_graphs=True),
            "hf_speculative at the draft length given, its passes captured as CUDA graphs",
            is_ours=True,
        ),
        *(
            Method(
                f"no-draft-{name}",
                partial(_without_draft, method=name),
                f"hf_speculative without the draft, by `draft_model={name!r}`",
                is_ours=True,
                is_bounded=True,
            )
            for name in DRAFTS.methods
        ),
        *(
            Method(
                f"head-{kind}",
                partial(_with_head, kind=kind),
                f"hf_speculative with {what}; of a shape, random weights, and tokens kept by lot",
                is_ours=True,
                is_bounded=True,
                head=kind,
            )
            for kind, what in HEADS.items()
        ),
        *(
            Method(
                f"{name}-packed{suffix}",
                partial(_on_packed_weights, drafts=True, head=head, is_auto=bool(suffix)),
                f"hf_speculative, compiled and on packed weights, of copies, with {what}, {length}",
                is_ours=True,
                head=head,
            )
            for name, head, what in (
                ("speculative", None, "the draft model"),
                ("head-eagle3", "eagle3", "an EAGLE-3 head"),
            )
            for suffix, length in (("", "at the draft length given"), ("-auto", "choosing its draft length"))
        ),
        Method(
            "economize",
            economize.generate,
            "the package economize with the same draft and draft length, where it is installed",
            package="economize",
        ),
        *(
            Method(
                f"{name}{suffix}",
                partial(engine.generate, drafts=drafts),
                f"{called} {what}, where it is installed",
                is_speculative=drafts,
                package=package,
            )
            for name, called, engine, package in (
                ("openvino", "OpenVINO GenAI", openvino, "openvino_genai"),
                ("llama-cpp", "llama.cpp", llama_cpp, "xllamacpp"),
            )
            for suffix, drafts, what in (
                ("", True, "with the same draft and draft length"),
                ("-plain", False, "without a draft"),
            )
        ),
    )
}
DEFAULT_METHODS = ("plain", "assisted", "speculative", "speculative-auto")
#: and those with the heads that come with the embedded pair
WITH_HEADS = (*DEFAULT_METHODS, "head-eagle3")


def chosen_methods(methods: Iterable[str | Method]) -> list[Method]:
    """Methods by their names; plain decoding is always among them, first."""
    chosen = [PLAIN]
    for method in methods:
        if isinstance(method, str):
            if method not in METHODS:
                raise ValueError(f"`methods`: {method!r} is not known: choose from {', '.join(METHODS)}.")
            method = METHODS[method]
        if method.package is not None and (reason := missing_reason(method.package)):
            raise ValueError(f"`methods`: {method.name!r} cannot be measured: {reason}")
        if method.name not in {other.name for other in chosen}:
            chosen.append(method)
    return chosen
