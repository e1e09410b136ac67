"""The public call: `generate`, `attach`, `patch_transformers` and the mixin, all of them one way in.

transformers' `generate` does all preparation and hands over to a callable, `SpeculativeDecoding`, given as
`custom_generate=`. That hook drops the streamer, the tokenizer and the draft, so the callable carries them.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

from .batches import AttachedBatch, plain_manager
from .call import checks
from .call.attached import Attached, attached_to, decode, of_patch, own_generate, patches, plain_generate_of, use_kernel_of
from .call.configuration import SpeculativeConfig
from .call.decoding import SpeculativeDecoding
from .call.option_table import CALL, DRAFTS, checked as checked_option, documented
from .call.output import GenerateSpeculativeOutput
from .call.preparation import checked, load_draft
from .call.sources import is_configured, source_of
from .call.statistics import Statistics
from .drafting.source import DraftSource
from .hf_compat import ContinuousMixin
from .interfaces import Drafter
from .models import in_modes_of_a_call, modes_of_a_call, pool
from .models.model_state import forget
from .models.shallow import REPLACED
from .types import Round

if TYPE_CHECKING:
    from .distillation.learner import Learner

#: what may draft: a model, its name, a method, a drafter of your own, or several of these
DraftModel: TypeAlias = "PreTrainedModel | str | Drafter | DraftSource | Sequence[PreTrainedModel | str | Drafter]"


@documented(CALL)
def generate(model: PreTrainedModel, inputs: Tensor | None = None, **kwargs) -> Tensor | GenerateSpeculativeOutput:
    """`model.generate(...)` with a draft, nothing attached.

    The caches of both models are kept for the next call; `detach(model)` and `detach(draft)` release them.

    Args:
        model: the target, any model with transformers' `generate` whose cache can be rolled back (docs/supported-models.md).
        inputs: `(batch, length)` prompt ids, left-padded; or `input_ids=`, `attention_mask=` as keywords.
        **kwargs: the options of docs/options.md, and anything else that `model.generate` takes.

    Returns:
        What `model.generate` returns; a `GenerateSpeculativeOutput` under `return_dict_in_generate=True`.

    Raises:
        ValueError, TypeError: before the first forward, naming the argument, its value and the way out.
    """
    checks.check_type(model, "model", nn.Module)
    args = () if inputs is None else (inputs,)
    wrapped = getattr(model, "get_base_model", lambda: model)()  # what was attached to it before a LoRA went around it
    if any(isinstance(own_generate(one), Attached) for one in (model, wrapped)):
        return model.generate(*args, **kwargs)
    return decode(model, plain_generate_of(model), args, kwargs, *attached_to(model))


def generate_rounds(model, **generate_kwargs) -> Generator[tuple[Round, Statistics], None, Tensor]:
    """`generate` with a draft: yields each round when asked for it, with the counts so far.

    For streaming, counting and timing: the generator's result is the tokens alone, and no cache is returned. Each row ends at
    its own stop, with or without an end token. Closing it early leaves both models usable.

    Raises:
        ValueError, TypeError: as `generate`; nothing asks for a draft.
    """
    model = checks.unwrap(model, "model")
    plain_generate = plain_generate_of(model)
    options, kwargs = checked(model, plain_generate, generate_kwargs, *attached_to(model))
    use_kernel_of(model, generate_kwargs)
    if options is None:
        raise ValueError("nothing asks for a draft: give `draft_model=`, 'auto' if you have none.")
    draft, decode = options.source.draft_model, SpeculativeDecoding(options).rounds
    with modes_of_a_call(model, draft):
        rounds = plain_generate(**kwargs, custom_generate=decode)
    with closing(rounds):
        return (yield from in_modes_of_a_call(rounds, model, draft))


class SpeculativeGenerationMixin:
    """`generate` with a draft, for a class of your own.

    class MyModel(SpeculativeGenerationMixin, LlamaForCausalLM): ...
    """

    def generate(self, *args, **kwargs) -> Tensor | GenerateSpeculativeOutput:
        """`hf_speculative.generate` as a method; without a draft, what the next class in line does."""
        if kwargs.get("custom_generate") is not None:
            return super().generate(*args, **kwargs)  # type: ignore[misc]
        return decode(self, super().generate, args, kwargs, *of_patch(self))  # type: ignore[misc]


def attach(
    model: PreTrainedModel,
    draft_model: DraftModel | None = None,
    *,
    num_draft_tokens: int | None = None,
    reproducible: bool | str | None = None,
    optimize: bool | str | None = None,
    learn: bool | str | os.PathLike | Learner | None = None,
    config: SpeculativeConfig | None = None,
) -> PreTrainedModel:
    """Give `model` a draft, so that every caller of `model.generate` speculates, until `detach`.

    Only this object changes: not its class, not its config. `copy.deepcopy` of it has a draft of its own; `copy.copy` decodes
    by the original. A call may still choose: `draft_model=other`, or `draft_model=None` for plain decoding. On a CPU both
    models run faster as well (`optimize`): within the rounding of their number format, tokens, weights, gradients and files
    are what they are without. docs/optimize.md says how.

    Args:
        model: the target.
        draft_model: what guesses ahead, as in a call: a smaller model or its name, a method such as `"suffix"`, a list. Without
            it, `"auto"` drafts, which needs no model, unless the model's `generation_config` names a source of drafts.
        num_draft_tokens: tokens to draft before the target checks them; chosen each round by measured cost if left out.
        reproducible: sample token for token what plain `generate` samples under the same seed. "bitwise": the same bits with
            any draft and without, in any number format (docs/bitwise.md).
        optimize: "auto", the default, multiplies by a kernel of our own and takes compiled passes once there are some; True
            compiles them in the first call; False leaves the models' own passes and products. GPUs capture passes instead.
        learn: train a copy of the draft model, or head, on what is decoded; its weights are used as soon as they are accepted
            more often. True, a folder where they are saved and found again, or a `Learner`. The draft given stays as it is.
        config: all other settings; a call's own come first.

    Returns:
        The same `model`.

    Raises:
        ValueError, TypeError: a draft that does not fit, a setting out of range, a `generate` that was replaced already.
    """
    own = SpeculativeConfig(num_draft_tokens=num_draft_tokens, reproducible=reproducible, optimize=optimize)
    config = own.over(config or SpeculativeConfig()).over(SpeculativeConfig(optimize="auto"))
    target = checks.unwrap(model, "model")
    if not isinstance(target, PreTrainedModel):
        raise TypeError(f"`model` is of type {type(model).__name__}: pass a transformers model.")
    if draft_model is None and not is_configured(getattr(target, "generation_config", None)):
        draft_model = "auto"
    existing = own_generate(target)
    if existing is not None and not isinstance(existing, Attached):
        name = getattr(existing, "__qualname__", None) or type(existing).__name__  # a repr may hold the whole model
        raise ValueError(f"`model.generate` was already replaced by a {name}: undo that first, `del model.generate`.")
    draft = load_draft(draft_model, target)
    checks.check_model(target, "model")
    learn, learner = config.learn if learn is None else learn, None
    if learn is not None and learn is not False:
        from .distillation.learner import Learner  # with all that trains drafts

        learner = Learner.of(learn)
        drafter, methods = DRAFTS.split(draft)
        of_target, of_draft = config.tokenizer, config.draft_tokenizer
        if of_draft is not None and (of_target is None or of_draft.get_vocab() != of_target.get_vocab()):
            has = "has others" if of_target is not None else "may have others, without `tokenizer` to compare"
            raise ValueError(f"`learn` trains on the target's ids, and `draft_tokenizer` {has}: leave one of them out.")
        own_draft = learner.begin(target, drafter)
        draft = own_draft if methods is None else (own_draft, methods)
    config = replace(config, learn=learner)
    if draft is not None:
        drafter, _ = DRAFTS.split(draft)
        settings = vars(config) if drafter is None else {}  # what a model needs beside, a call may bring
        checks.check_source(source_of("draft_model", draft, settings), target)
    if existing is not None:
        existing.drop_kernel()
    target.generate = Attached(target, draft, config)
    target.generate_batch = AttachedBatch(target.generate)
    target.init_continuous_batching = functools.partial(plain_manager, target)
    target.generate.use_kernel()
    return model


def detach(model: PreTrainedModel) -> PreTrainedModel:
    """Undo `attach`; returns the same `model`. A model without a draft stays as it is.

    Releases the memory kept for later calls, caches and compiled passes, of both models. What sources of drafts have kept with
    the target, answers and what they learned, is forgotten.
    """
    target = checks.unwrap(model, "model")
    attached = own_generate(target)
    if isinstance(attached, Attached):
        attached.drop_kernel()
        for name in REPLACED:
            delattr(target, name)
        for one in attached.models:
            pool.release(one)
    pool.release(target)
    forget(target)
    return model


_patching = threading.Lock()


def _patched(original):
    """`original`, or with a draft if a patch in force or the call says so."""

    @functools.wraps(original)
    def generate(self, *args, **kwargs):
        draft, config = of_patch(self)
        if kwargs.get("custom_generate") is not None or config is None:
            return original(self, *args, **kwargs)
        return decode(self, original.__get__(self), args, kwargs, draft, config)

    return generate


def _generate_batch(self, *args, **kwargs):
    """`ContinuousMixin.generate_batch`, or with a draft if the newest patch in force has one."""
    draft, config = of_patch(self)
    if draft is None or config is None:
        return ContinuousMixin.generate_batch(self, *args, **kwargs)
    return AttachedBatch(Attached(self, draft, config))(*args, **kwargs)


class patch_transformers(AbstractContextManager):
    """Teach every model's `generate` to take `draft_model=`, for a while or until `undo()`.

        with hf_speculative.patch_transformers():
            model.generate(**inputs, draft_model=draft)

        patch = hf_speculative.patch_transformers()  # the same, until patch.undo()

    A call with a draft, `assistant_model=` and prompt lookup included, goes through this package; any other call is
    transformers' own, unless a draft is given here: `patch_transformers("auto")`.

    Args:
        draft_model, config: as if attached to each model that has nothing attached.
    """

    _generate: Any  # ours, around transformers' own, of the patches that are in force

    def __init__(self, draft_model: DraftModel | None = None, config: SpeculativeConfig | None = None):
        self.draft_model, self.config = checked_option("draft_model", draft_model), config or SpeculativeConfig()
        with _patching:
            if not patches:
                GenerationMixin.generate = patch_transformers._generate = _patched(GenerationMixin.generate)
                GenerationMixin.generate_batch = _generate_batch
            patches.append(self)

    def undo(self) -> None:
        """Put transformers' own `generate` back, once no other patch is left; patches end in any order, on any thread."""
        with _patching:
            if self in patches:
                patches.remove(self)
                ours = patch_transformers._generate
                # Another library's wrapper around ours stays: without a patch in force, ours calls transformers' own.
                if not patches and GenerationMixin.generate is ours:
                    GenerationMixin.generate = ours.__wrapped__
                if not patches and vars(GenerationMixin).get("generate_batch") is _generate_batch:
                    del GenerationMixin.generate_batch

    def __exit__(self, *exception) -> None:
        self.undo()
