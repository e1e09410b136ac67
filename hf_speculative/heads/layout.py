"""The base class of file layouts of heads: from files to a model, and back."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from ..hf_compat import tied_weights
from .files import HeadFiles, wrong_reason

#: the fields and tensors of a head's files
Published: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]
#: the most tensors that an error names
MAX_NAMED = 4


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

    def check_values(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> None:
        """What tensors have to hold beside their shapes.

        Raises:
            ValueError: they do not.
        """

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
                raise ValueError(
                    f"`target_name={target_name!r}`: the layout {cls.name!r} has no field for it, only speculators' has: leave "
                    "it out."
                )
            own = fields["speculators_config"]
            named = (own.get("verifier") or {"architectures": []}) | {"name_or_path": target_name}
            fields["speculators_config"] = own | {"verifier": named}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_NAME).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})

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
            reason = wrong_reason(tensors["d2t"], config.get_text_config(decoder=True).vocab_size)
        if d2t is not None and reason is not None:
            raise ValueError(f"{self.files.name}: d2t {tuple(d2t.shape)} {reason}: give the draft as it was published.")
        self.check_values(tensors, config)
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
            raise ValueError(
                f"{self.files.name} does not hold the tensors of the head that its config.json describes "
                f"({misfits}): give the draft as it was published."
            )


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
