"""The weights that a pass compiled ahead of time reads: a model's own, where they are, and those that are packed.

A packed weight may turn plain at any moment, for whoever looks at it (`packed_parameters`). The pass hears of that, lets go of
all weights, and is not run again: who has it runs eagerly, until the next call binds another one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .packed_parameters import PackedParameters


class Moved(RuntimeError):
    """A weight that was packed is plain now."""


class BoundPass:
    """A compiled pass on a model's weights: they are not copied, and plain ones may change in place.

    Args:
        compiled: torch's loader of the file.
        plain: weights by the names that the file has for them.
        packed: the parameters of packed layers, by the same names.

    Raises:
        Moved: one of these is packed no more.
    """

    def __init__(self, compiled: Any, plain: Mapping[str, Tensor], packed: Mapping[str, PackedParameters]):
        self.compiled, self.packed = compiled, list(packed.values())
        self.copies = [parameters for parameters in self.packed if parameters.stamp is not None]
        self.lock, self.is_over = threading.Lock(), False
        weights = dict(plain)
        for name, parameters in packed.items():
            if (weight := parameters.read_by(self)) is None:
                raise Moved(f"somebody has asked for {name}, which was packed")
            weights[name] = weight
        self.places = [id(weights[name]) for name in packed]
        with self.lock, torch.inference_mode(False):
            # torch keeps the very tensors it is given here for good: it is given some of our own, which are emptied in the end.
            aliases = {name: weight.detach() for name, weight in weights.items()}
            use_inactive, check_full_update, user_managed = False, True, True
            compiled.load_constants(aliases, use_inactive, check_full_update, user_managed)
            self.aliases = list(aliases.values())
            self.empty = weakref.finalize(self, _empty, self.aliases)
            self.empty.atexit = False
            if self.is_over:
                self.empty()

    def __call__(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """What the pass gives; `None`, and nothing done, if a packed weight has become plain since."""
        if not all(parameters.is_up_to_date() for parameters in self.copies):
            return None
        with self.lock:
            return None if self.is_over else self.compiled.run(inputs)

    def is_current(self) -> bool:
        """Its packed weights are still those of the model."""
        return not self.is_over and self.places == [id(parameters.packed) for parameters in self.packed]

    def release(self) -> None:
        """Let go of all weights, as soon as a pass that is running is over."""
        with self.lock:
            self.is_over = True
            if hasattr(self, "empty"):
                self.empty()


@torch.inference_mode(False)
def _empty(aliases: list[Tensor]) -> None:
    for alias in aliases:
        # On the CPU, wherever tensors are made just now: garbage may be collected while a model is loaded on "meta".
        alias.data = torch.zeros(1, 1, device="cpu").to_mkldnn() if alias.is_mkldnn else torch.empty(0, device="cpu")
