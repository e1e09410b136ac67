"""The base class of file layouts of heads: from files to a model, without running their code, and back."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, utils

from ..hf_compat import tied_weights
from ..names import LOADING, OF_REPOSITORY

#: the fields and tensors of a head's files
Published: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]
#: files of weights: whole, and an index of several
WEIGHTS = (utils.SAFE_WEIGHTS_NAME, utils.SAFE_WEIGHTS_INDEX_NAME), (utils.WEIGHTS_NAME, utils.WEIGHTS_INDEX_NAME)
#: the most tensors that an error names
MAX_NAMED = 4


def wrong_reason(d2t: Tensor, vocab_size: int, t2d: Tensor | None = None) -> str | None:
    """Why `d2t` is no map from draft tokens d to d + d2t[d], of the target's `vocab_size` tokens; `None` if it is one.

    Args:
        t2d: which of these have a draft token, if a file says so.
    """
    if d2t.is_floating_point() or d2t.ndim != 1:
        return f"of type {str(d2t.dtype).removeprefix('torch.')} is no list of ids"
    ids = of_target(d2t)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return f"leads to the token ids {int(ids.min())} to {int(ids.max())}, and the target has 0 to {vocab_size - 1}"
    if len(ids.unique()) < len(ids):
        return f"leads {len(ids) - len(ids.unique())} draft tokens to target tokens that others stand for already"
    if t2d is not None and (differing := int((members(d2t, vocab_size) != t2d.bool()).sum())):
        return f"and t2d {tuple(t2d.shape)} disagree about {differing} tokens, so that drafts would mean other tokens"
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
        for whole, index in WEIGHTS:
            if (path := self._path(whole)) is not None:
                return [path]
            if (path := self._path(index)) is not None:
                shards = sorted(set(json.loads(Path(path).read_text())["weight_map"].values()))
                return [self._shard(shard, index) for shard in shards]
        raise ValueError(f"{self.name} has neither {utils.SAFE_WEIGHTS_NAME} nor {utils.WEIGHTS_NAME}: give a complete draft.")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by their name in the files, on the CPU; those of safetensors are read when they are used."""
        return {name: tensor for path in self._weights() for name, tensor in _read(path).items()}

    def _path(self, file: str) -> str | None:
        return utils.cached_file(self.name, file, _raise_exceptions_for_missing_entries=False, **self.places)

    def _shard(self, file: str, index: str) -> str:
        path = self._path(file)
        if path is None:
            raise ValueError(f"{self.name} has no {file}, which its {index} names: give a complete draft.")
        return path


def _read(path: str) -> dict[str, Tensor]:
    is_safe = path.endswith(".safetensors")
    return load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)


class Layout:
    """A published layout of a head's files: a config, and tensors under names of its own.

    A subclass needs `config` and `models`, and `recognises` or `speculators_types`.

    Attributes:
        name: what `hf-speculative export --layout` calls it; `None` if it is read only.
        speculators_types: values of `speculators_model_type` that it reads, if it is one of speculators'.
        models: what runs a head, by the type of its config: transformers' own class where one fits.
        of_target: how names of tensors begin of which files may hold the target's, which are left out.
    """

    name: ClassVar[str | None] = None
    speculators_types: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[dict[type[PreTrainedConfig], type[PreTrainedModel]]]
    of_target: ClassVar[tuple[str, ...]] = ()

    def __init__(self, files: HeadFiles):
        self.files = files

    @classmethod
    def recognises(cls, files: HeadFiles) -> bool:
        """Whether `files` are of this layout; by the config's fields, and by names of tensors where these do not tell."""
        return files.fields.get("speculators_model_type") in cls.speculators_types

    def config(self) -> PreTrainedConfig:
        """The config of one of `models`.

        Raises:
            ValueError: a field is missing or says what cannot be run.
        """
        raise NotImplementedError

    def renamed(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
        """The files' tensors by their names in the model; what no pass of ours reads is left out."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(self.of_target)}

    @classmethod
    def unsupported(cls, config: PreTrainedConfig) -> dict[str, Any]:
        """Reasons why the layout may have no place for a head of this config, one of `models`, and whether each holds."""
        return {}

    @classmethod
    def published(cls, config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
        """The fields and tensors of a head in this layout: what `config` and `renamed` make of files, undone."""
        return config.to_diff_dict() | {"dtype": dtype_of(tensors)}, tensors

    @classmethod
    def write(cls, config: PreTrainedConfig, tensors: dict[str, Tensor], folder: Path, target_name: str | None) -> None:
        """Write a head, its tensors by their names in the model, to `folder`, which is created if missing.

        Args:
            target_name: what the file calls the target; `None`: as `config` does.

        Raises:
            ValueError: the layout has no field for that name.
        """
        fields, tensors = cls.published(config, tensors)
        if target_name is not None:
            if "speculators_config" not in fields:
                reason = f"the layout {cls.name!r} has no field for it, only speculators' has"
                raise ValueError(f"`target_name={target_name!r}`: {reason}: leave it out.")
            own = fields["speculators_config"]
            named = (own.get("verifier") or {"architectures": []}) | {"name_or_path": target_name}
            fields["speculators_config"] = own | {"verifier": named}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / utils.CONFIG_NAME).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / utils.SAFE_WEIGHTS_NAME, metadata={"format": "pt"})

    def contents(self) -> tuple[PreTrainedConfig, dict[str, Tensor]]:
        """The head's config, and its tensors as they are stored, by their names in the model.

        Raises:
            ValueError: its tensors are not those that its config asks for.
        """
        config = self.config()
        tensors = self.renamed(self.files.tensors, config)
        d2t, reason = tensors.get("d2t"), None
        if d2t is not None and not getattr(config, "has_own_ids", False):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
            reason = "reorders a draft vocabulary that is as large as the target's" if d2t.any() else None
        with torch.device("meta"):
            model = self.models[type(config)](config)
        self._check_shapes(tensors, model)
        if "d2t" in tensors:
            size = config.get_text_config(decoder=True).vocab_size
            reason = wrong_reason(tensors["d2t"], size, tensors.get("t2d"))
        if d2t is not None and reason is not None:
            raise ValueError(f"{self.files.name}: d2t {tuple(d2t.shape)} {reason}: give the draft as it was published.")
        return config, tensors

    def load(self, **kwargs) -> PreTrainedModel:
        """The head, in eval mode.

        Args:
            **kwargs: as in `from_pretrained`: `dtype`, `device_map`, `quantization_config`, ...

        Raises:
            ValueError: see `contents`.
        """
        config, tensors = self.contents()
        kind = self.models[type(config)]
        model = kind.from_pretrained(None, config=config, state_dict=tensors, **kwargs)
        model.name_or_path = model.config.name_or_path = self.files.name
        return model.eval()

    def _check_shapes(self, tensors: dict[str, Tensor], model: PreTrainedModel) -> None:
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        differing = [name for name in found.keys() & expected.keys() if found[name] != expected[name]]
        kinds = {
            "missing": [f"{name} {expected[name]}" for name in expected.keys() - found.keys() - tied_weights(model)],
            "unexpected": [f"{name} {found[name]}" for name in found.keys() - expected.keys()],
            "of another shape": [f"{name} {found[name]} where its config says {expected[name]}" for name in differing],
        }
        if misfits := misfits_of(kinds):
            lacks = f"does not hold the tensors of the head that its config.json describes ({misfits})"
            raise ValueError(f"{self.files.name} {lacks}: give the draft as it was published.")


def dtype_of(tensors: dict[str, Tensor]) -> str:
    """The name of their type: that of the first which is no list of ids."""
    return next(str(tensor.dtype) for tensor in tensors.values() if tensor.is_floating_point()).removeprefix("torch.")


def first_reason(reasons: Mapping[str, Any]) -> str | None:
    """The first of the reasons that hold; `None` if none does."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def misfits_of(kinds: Mapping[str, Collection[str]]) -> str:
    """Names of tensors by what is wrong with them, in words; empty where nothing is."""
    return "; ".join(f"{kind}: {_listed(sorted(names))}" for kind, names in kinds.items() if names)


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
