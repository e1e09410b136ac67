"""Other ways to decode, which are compared with ours: a name and a function. Your own is one more `Rival`."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from transformers import CompileConfig, PreTrainedModel

from ..hf_compat import compile_on_all_devices
from ..models.shallow import exchanged
from .calls import Decoded, timed_generate
from .drafts import NamedDraft


@dataclass(frozen=True)
class Rival:
    """A way to decode that is not ours.

    Attributes:
        name: what `Setting(rival=...)` and the tables call it.
        decode: takes the keywords of a `generate` call: `input_ids` and `attention_mask` of a batch, all stopping criteria, and
            `num_draft_tokens` where the setting names it. It decodes the prompts and says when.
        max_batch_size: the largest batch it takes.
    """

    name: str
    decode: Callable[[dict[str, Any]], Decoded]
    max_batch_size: int | None = None


def assisted(target: PreTrainedModel, draft: NamedDraft, name: str = "assisted") -> Rival:
    """transformers' assisted generation with a draft, at the setting's draft length, else by its own defaults."""

    def decode(call: dict[str, Any]) -> Decoded:
        helper = exchanged(draft.model, {})  # its settings are read from, and written to, the draft's generation config
        helper.generation_config = copy.deepcopy(draft.model.generation_config)
        if (length := call.pop("num_draft_tokens", None)) is not None:
            constant = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
            helper.generation_config.update(num_assistant_tokens=length, **constant)
        own = {} if draft.tokenizer is None else {"assistant_tokenizer": draft.tokenizer}
        passes: list[PreTrainedModel] = []
        # a draft of the target's first layers is a shallow copy, which has the same hooks
        with target.register_forward_pre_hook(lambda module, _: passes.append(module) if module is target else None):
            call |= {"assistant_model": helper, **own}
            decoded = timed_generate(_theirs(target), target, call)
        return replace(decoded, num_target_passes=len(passes))

    return Rival(name, decode, max_batch_size=1)


def compiled(target: PreTrainedModel, name: str = "plain, compiled") -> Rival:
    """Plain decoding by transformers with a static cache and a compiled forward."""

    def decode(call: dict[str, Any]) -> Decoded:
        settings = CompileConfig(mode="reduce-overhead" if target.device.type == "cuda" else "default")
        compile_on_all_devices(settings)  # transformers compiles by itself on a GPU only
        call |= {"cache_implementation": "static", "compile_config": settings}
        return timed_generate(_theirs(target), target, call)

    return Rival(name, decode)


def _theirs(target: PreTrainedModel) -> Callable[..., Any]:
    """The `generate` of the target's class, whatever is attached."""
    return partial(type(target).generate, target)
