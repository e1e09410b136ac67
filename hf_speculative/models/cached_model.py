"""What the loop asks of a model with its cache."""

from __future__ import annotations

import copy
import threading
from collections.abc import Hashable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..types import Batch


class CachedModel:
    """A model that feeds what it has not seen.

    Its cache covers the first `seen[b]` tokens of each row; a pass feeds everything from there on. So a draft that was
    accepted whole, whose last token the draft model has never read, is no special case.

    Attributes:
        num_forwards: passes so far.
        keep: names of the outputs that `step_output` can give after a pass.
        keeps_rows_together: its cache has one length for all rows, so that rows far apart cost passes twice.
    """

    num_forwards: int = 0
    keeps_rows_together: bool = False
    keep: tuple[str, ...] = ()

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        """Feed each row's unseen tokens up to `ahead` beyond its length; logits `(batch, num_last, vocab)` of the last."""
        raise NotImplementedError

    def drafts_at_once(self, batch: Batch) -> bool:
        """Whether `draft` is there, and faster than a pass at a time."""
        return False

    def draft(self, batch: Batch, num_tokens: int, draw, settings: Hashable) -> tuple[Tensor, Tensor | None]:
        """Draw `num_tokens` tokens a row, each after the ones before: tokens `(batch, num_tokens)` and, if any, their laws.

        Args:
            draw: `draw(logits (batch, vocab), ahead)` gives tokens `(batch,)` and their laws or `None`; no part of it may
                depend on the host, for it may be captured, and replayed wherever `settings` are the same.
        """
        raise NotImplementedError

    def rollback(self, batch: Batch) -> None:
        """Forget all but the tokens of `batch`, the newest of which has not been fed."""
        raise NotImplementedError

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget everything: another batch begins."""
        raise NotImplementedError

    def release(self) -> None:
        """The call is over: memory may be kept for the next one."""

    def prefill(self, batch: Batch) -> None:
        """Feed all tokens of `batch`, for nothing but the cache."""
        self.logits(batch, ahead=0, num_last=1)
        self.rollback(batch)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers` takes the place of the row at `lanes[i]`: its prompt is read in a pass without the others."""
        fresh = self.fresh()
        fresh.prefill(newcomers)
        self.num_forwards = fresh.num_forwards
        self.take(fresh, lanes)

    def fresh(self):
        """The same model with an empty cache of its own."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def take(self, other, lanes: list[int]) -> None:
        """Row i of what `other` has cached takes the place of the row at `lanes[i]`."""
        raise NotImplementedError

    def forget(self, lanes: list[int]) -> None:
        """Other rows are at `lanes` from now on, of which nothing was read."""
        raise NotImplementedError

    def hidden_states(self, positions: Tensor) -> Tensor:
        """States `(batch, n, layers * hidden)` of the tokens at `positions (batch, n)`, a row's first token at 0.

        Of the layers that the drafter named (`Drafter.hidden_layers`), for tokens that a pass has read: all accepted ones
        but a row's newest. What stands at other positions is filler.
        """
        raise NotImplementedError

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer has cached, each `(batch, heads, capacity, dim)`: a row's token t stands in slot t."""
        raise NotImplementedError

    def load(self, cache, batch: Batch) -> None:
        """Start from transformers' own `cache`, filled with the first columns of `batch`."""
        raise NotImplementedError

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        """What plain `generate` leaves behind: a transformers cache of all of `sequences` but the last column.

        Written into the user's own cache if one was `given`. Called once a call, when all rows are done.

        Args:
            sequences: `(batch, columns)`, those of the call.
            padding: columns that are hidden in each row's prompt.
            lengths: columns of each row up to its own end; plain decoding goes on with pad tokens, and so does the cache.
        """
        raise NotImplementedError

    def step_output(self, name: str, row: int, column: int) -> tuple[Tensor, ...]:
        """The last pass's `hidden_states` or `attentions` for the token in `column` of a row of the call: one a layer."""
        raise NotImplementedError


def device_of(model: PreTrainedModel) -> torch.device:
    """Where a model takes its inputs; accelerate keeps offloaded weights on "meta" and knows the device that runs them."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
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
        modules = [module for module in model.modules() if module in num_off or getattr(module, name, False)]
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
