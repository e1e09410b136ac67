"""Facts and modes of a model that its caches need: device, widths, positions, dropout."""

import atexit
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from transformers import PreTrainedModel

from ..hf_compat import placement_hook


def device_of(model: PreTrainedModel) -> torch.device:
    """The device of a model's inputs; of offloaded weights, which lie on "meta", accelerate's execution device."""
    if model.device.type != "meta":
        return model.device
    hooks = map(placement_hook, model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "cpu"))


def last_id(model: PreTrainedModel) -> int:
    """The last id with an embedding; under ZeRO-3, where weights have no rows, by the config."""
    embedding = model.get_input_embeddings()
    return (getattr(embedding, "num_embeddings", None) or embedding.weight.shape[0]) - 1


def num_logits(model: PreTrainedModel) -> int:
    """Width of the model's logits: that of its head where it has one, which need not be the vocabulary's (ImageGPT)."""
    width = getattr(model.get_output_embeddings(), "out_features", None)
    return width or model.config.get_text_config(decoder=True).vocab_size


def max_positions_of(model: PreTrainedModel) -> int | None:
    """The longest text of the model by its config; `None` if the config has no limit."""
    config = model.config.get_text_config(decoder=True)
    names = ["max_position_embeddings", "max_target_positions", "n_positions"]
    names += ["max_text_positions", "max_decoder_position_embeddings"]
    return next((size for name in names if (size := getattr(config, name, None)) is not None), None)


def image_layers(model: PreTrainedModel) -> list[int]:
    """Layers of the decoder that attend to an image, whose keys lie in the text's cache: Mllama's."""
    return getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None) or []


def num_cached_of_image(model: PreTrainedModel, cache) -> int:
    """Columns of an image in those layers of `cache`."""
    layers = getattr(cache, "layers", [])
    return max((layers[index].get_seq_length() for index in image_layers(model) if index < len(layers)), default=0)


#: how many calls keep a module's attribute switched off, by its name
_num_off: dict[str, WeakKeyDictionary[nn.Module, int]] = defaultdict(WeakKeyDictionary)
_lock = threading.Lock()


@contextmanager
def _switched_off(model: nn.Module, name: str):
    """Set the attribute `name` of all modules to False for a block of code.

    Blocks may overlap, in threads or as open generators: the last one to end restores the attributes.
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
    """Use evaluation mode in a block of code, and restore the mode of each module after it."""
    return _switched_off(model, "training")


@contextmanager
def modes_of_a_call(target: nn.Module, draft: nn.Module | None):
    """Switch off the draft's dropout and the target's gradient checkpointing while a call runs.

    In training mode, layers under checkpointing ignore their cache, so that a target would read each token as a first one. The
    target's dropout stays on: plain decoding samples from that model.
    """
    has_own_mode = draft is not None and draft is not target
    with without_dropout(draft) if has_own_mode else nullcontext(), _switched_off(target, "gradient_checkpointing"):
        yield


#: calls that a program may leave open at its end
_open = WeakSet[Generator]()


@atexit.register
def _close_open_calls() -> None:
    """End them while the modules that they use are whole."""
    for steps in [*_open]:
        with suppress(ValueError):  # one that runs in another thread
            steps.close()


def in_modes_of_a_call(steps: Generator, target: nn.Module, draft: nn.Module | None) -> Generator:
    """`steps`, each in the modes of a call; the code between them has its own. The result is theirs."""
    _open.add(steps)
    while True:
        with modes_of_a_call(target, draft):
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
        yield step
