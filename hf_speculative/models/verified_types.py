"""Model types whose caches the tests compare with plain `generate`, so that none of them needs to be tried at run time."""

import json
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

#: types of models by what was tested.
#: "ragged": tests/models/test_ragged.py compares them with plain `generate`, so that none needs to be asked;
#: "universal": `python -m tests.architectures` found them exact by the universal path, on the oldest and newest transformers;
#: "multimodal": those of them that it found exact on the ragged path with an image or a recording in the prompt;
#: "trees": their logits for a branching tree of draft tokens it found equal to those of the paths one by one
TESTED: dict[str, list[str]] = json.loads((Path(__file__).parent / "tested_types.json").read_text())
#: packages whose modules the tests ran; `transformers.integrations` has quantised and foreign layers
TESTED_MODULES = ("torch.nn.", "torch.distributed.", "transformers.", "peft.", "hf_speculative.")
#: packages whose hooks move weights and leave what is computed alone
HOOKING = ("torch._dynamo.", "accelerate.", "deepspeed.")
FOREIGN_MODULES = ("transformers.integrations.", "torch.nn.quantized.", "torch.nn.quantizable.", "torch.nn.qat.")


def has_tested_modules(model: PreTrainedModel) -> bool:
    """Whether a model consists of what the tests of its type ran: no quantised weights, no layers of another library.

    A layer that quantises its inputs computes a token otherwise beside other tokens, which a type's name does not tell. Nor
    does it tell of hooks on layers, or of a `forward` that replaces a class's.
    """
    kinds = set()
    for module in model.modules():
        kinds.add(type(module))
        own = vars(module)  # looked up directly: there are hundreds of modules, and each call asks
        has_more = "forward" in own or own["_forward_pre_hooks"] or own["_forward_hooks"]
        if has_more and module is not model and _is_changed(module):
            return False
    packages = {f"{kind.__module__}." for kind in kinds}
    if any(name.startswith(FOREIGN_MODULES) or not name.startswith(TESTED_MODULES) for name in packages):
        return False
    weights = list(model.parameters())
    kinds = {type(weight) for weight in weights} - {nn.Parameter}
    are_sharded = all(kind.__module__.startswith("torch.distributed.") for kind in kinds)
    return are_sharded and all(weight.is_floating_point() for weight in weights)


def _is_changed(module: nn.Module) -> bool:
    """Whether a package that is not in `TESTED_MODULES` wraps or hooks this object's `forward`."""
    put = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    put += [vars(module)["forward"]] if "forward" in vars(module) else []
    packages = {f"{getattr(getattr(one, 'func', one), '__module__', '')}." for one in put}  # of a partial, its function
    return any(not package.startswith((*TESTED_MODULES, *HOOKING)) for package in packages)


def is_tested_ragged(model: PreTrainedModel, by_type: bool = False) -> bool:
    """Whether tests compared the ragged cache of such a model with plain decoding.

    Args:
        by_type: whatever its modules are, for what rounding does not change.
    """
    return model.config.model_type in TESTED["ragged"] and (by_type or has_tested_modules(model))


def is_tested_multimodal(model: PreTrainedModel) -> bool:
    """Whether tests compared such a model on the ragged path with more than ids in the prompt."""
    return model.config.model_type in TESTED["multimodal"]


def fits_trees(model: PreTrainedModel) -> bool:
    """Whether trees of draft tokens are right on the ragged path; types that no test compares take chains."""
    return model.config.model_type in TESTED["trees"]


def is_tested_universal(model: PreTrainedModel, by_type: bool = False) -> bool:
    """Whether tests compared such a model on the universal path, the language model in it included."""
    outer, inner = model.config.model_type, model.config.get_text_config(decoder=True).model_type
    is_own = inner.startswith(outer) or inner in TESTED["ragged"] + TESTED["universal"]
    return outer in TESTED["universal"] and is_own and (by_type or has_tested_modules(model))
