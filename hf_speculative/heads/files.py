"""Read the files of a draft head from a folder or the Hub, without running its code."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME, cached_file

from ..names import LOADING, OF_REPOSITORY


def wrong_reason(d2t: Tensor, vocab_size: int) -> str | None:
    """Why `d2t` is no map from draft tokens d to d + d2t[d], of the target's `vocab_size` tokens; `None` if it is one."""
    if d2t.is_floating_point() or d2t.ndim != 1:
        return f"of type {str(d2t.dtype).removeprefix('torch.')} is no list of ids"
    ids = of_target(d2t)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return f"leads to the token ids {int(ids.min())} to {int(ids.max())}, and the target has 0 to {vocab_size - 1}"
    if len(ids.unique()) < len(ids):
        return f"leads {len(ids) - len(ids.unique())} draft tokens to target tokens that others stand for already"
    return None


def of_target(d2t: Tensor) -> Tensor:
    """The target's ids of all draft tokens: `(draft vocabulary,)`."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def over_target(logits: Tensor, d2t: Tensor, vocab_size: int) -> Tensor:
    """`logits (..., draft vocabulary)` by the target's ids: `(..., vocab_size)`, -inf where there is no draft token."""
    full = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return full.index_copy(-1, of_target(d2t).to(logits.device), logits)


def members(d2t: Tensor, vocab_size: int) -> Tensor:
    """Which of the target's tokens are draft tokens: `(vocab_size,)` bool, called t2d in files."""
    found = torch.zeros(vocab_size, dtype=torch.bool)
    found[of_target(d2t)] = True
    return found


@dataclass(frozen=True)
class HeadFiles:
    """The files of a head.

    Attributes:
        name: the folder or repository.
        places: keywords of `from_pretrained` that say where files come from.
        fields: its `config.json`.
    """

    PLACES: ClassVar[tuple[str, ...]] = (*LOADING, *OF_REPOSITORY, "subfolder")

    name: str
    places: dict[str, Any]
    fields: dict[str, Any]

    @classmethod
    def of(cls, name: str | Path, kwargs: dict[str, Any]) -> "HeadFiles":
        """Those of `name`, from where `kwargs` of `from_pretrained` say."""
        places = {key: kwargs[key] for key in cls.PLACES if key in kwargs and key != "trust_remote_code"}
        fields, _ = PreTrainedConfig.get_config_dict(name, **places)
        return cls(str(name), places, fields)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the fields that a config has."""
        others = ("architectures", "auto_map", "model_type")
        return {name: value for name, value in self.fields.items() if name not in others}

    def _weights(self) -> list[str]:
        """Paths of the files that hold the tensors; one at least.

        Raises:
            ValueError: there are none.
        """
        for whole, index in ((SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME), (WEIGHTS_NAME, WEIGHTS_INDEX_NAME)):
            if (path := self._path(whole)) is not None:
                return [path]
            if (path := self._path(index)) is not None:
                shards = sorted(set(json.loads(Path(path).read_text())["weight_map"].values()))
                return [self._shard(shard, index) for shard in shards]
        raise ValueError(f"{self.name} has neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME}: give a complete draft.")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by their name in the files, on the CPU; those of safetensors are read when they are used."""
        return {name: tensor for path in self._weights() for name, tensor in _read(path).items()}

    def _path(self, file: str) -> str | None:
        return cached_file(self.name, file, _raise_exceptions_for_missing_entries=False, **self.places)

    def _shard(self, file: str, index: str) -> str:
        path = self._path(file)
        if path is None:
            raise ValueError(f"{self.name} has no {file}, which its {index} names: give a complete draft.")
        return path


def _read(path: str) -> dict[str, Tensor]:
    is_safe = path.endswith(".safetensors")
    return load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
