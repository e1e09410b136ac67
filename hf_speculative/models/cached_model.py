"""What the loop asks of a model with its cache."""

import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import placement_hook


def device_of(model: PreTrainedModel) -> torch.device:
    """Where a model takes its inputs; accelerate keeps offloaded weights on "meta" and knows the device that runs them."""
    if model.device.type != "meta":
        return model.device
    hooks = map(placement_hook, model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "cpu"))


def last_id(model: PreTrainedModel) -> int:
    """The last id that the model has an embedding for; ZeRO-3 leaves weights without rows."""
    embedding = model.get_input_embeddings()
    return (getattr(embedding, "num_embeddings", None) or embedding.weight.shape[0]) - 1


def num_logits(model: PreTrainedModel) -> int:
    """Width of the model's logits: that of its head where it has one, which need not be the vocabulary's (ImageGPT)."""
    width = getattr(model.get_output_embeddings(), "out_features", None)
    return width or model.config.get_text_config(decoder=True).vocab_size


def max_positions_of(model: PreTrainedModel) -> int | None:
    """The longest text the model can take, as far as its config says."""
    config = model.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_target_positions", "n_positions")
    return next((size for name in names if (size := getattr(config, name, None)) is not None), None)


def reads_length(model: PreTrainedModel) -> bool:
    """Positions are encoded by how long the longest text of a pass is: RoPE's kinds "dynamic" and "longrope"."""
    kinds = [str(vars(module).get("rope_type", "")) for module in model.modules()]  # one, or one by type of layer
    return any("dynamic" in kind or "longrope" in kind for kind in kinds)


def image_layers(model: PreTrainedModel) -> list[int]:
    """Layers of the decoder that attend to an image, whose keys lie in the text's cache: Mllama's."""
    return getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None) or []


def num_cached_of_image(model: PreTrainedModel, cache) -> int:
    """Columns of an image in those layers of `cache`."""
    layers = getattr(cache, "layers", [])
    return max((layers[index].get_seq_length() for index in image_layers(model) if index < len(layers)), default=0)


#: how many calls keep a module's attribute switched off, by its name
_num_off: dict[str, WeakKeyDictionary[nn.Module, int]] = {
    "training": WeakKeyDictionary(),
    "gradient_checkpointing": WeakKeyDictionary(),
}
_lock = threading.Lock()


@contextmanager
def _switched_off(model: nn.Module, name: str):
    """Modules whose attribute `name` is true have it false for a while.

    Calls may overlap, in threads or as open generators: the last one out puts back what the first one found.
    """
    num_off = _num_off[name]
    with _lock:
        # An attribute of their own: looking for one that is not there takes torch long, for each of hundreds of modules.
        modules = [module for module in model.modules() if vars(module).get(name) or (num_off and module in num_off)]
        for module in modules:
            num_off[module] = num_off.get(module, 0) + 1
            setattr(module, name, False)
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                num_off[module] -= 1
                if num_off[module] == 0:
                    del num_off[module]
                    setattr(module, name, True)


def without_dropout(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode for a while; afterwards each module is in the mode it was in, mixed ones included."""
    return _switched_off(model, "training")


@contextmanager
def modes_of_a_call(target: nn.Module, draft: nn.Module | None):
    """What is switched off while a call runs: the draft's dropout, and gradient checkpointing of the target.

    Layers under checkpointing drop the cache that they are given in training mode, so that a target would read each token as
    if it came first. Its dropout stays as it is: that is the model plain decoding samples from.
    """
    has_own_mode = draft is not None and draft is not target
    with without_dropout(draft) if has_own_mode else nullcontext(), _switched_off(target, "gradient_checkpointing"):
        yield
