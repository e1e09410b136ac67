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
from .draft_ids import wrong_reason
from .files import HeadFiles

#: the fields and tensors of a head's files
Published: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]
#: the most tensors that an error names
MAX_NAMED = 4


class Layout:
    """A published layout of a head's files: a config, and tensors under names of its own.

    A subclass needs `config` and `model_class`, and `recognises` or `speculators_types`; one that can be written, `name`,
    `writing_unsupported_reason` and `published`.

    Attributes:
        name: what `hf-speculative export --layout` calls it.
        speculators_types: values of `speculators_model_type` that it reads, if it is one of speculators'.
    """

    name: ClassVar[str]
    speculators_types: ClassVar[tuple[str, ...]] = ()

    def __init__(self, files: HeadFiles):
        self.files = files

    @classmethod
    def recognises(cls, files: HeadFiles) -> bool:
        """Whether `files` are of this layout; by the config's fields, and by names of tensors where these do not tell."""
        return files.fields.get("speculators_model_type") in cls.speculators_types

    def config(self) -> PreTrainedConfig:
        """The config of `model_class`.

        Raises:
            ValueError: a field is missing or says what cannot be run.
        """
        raise NotImplementedError

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """What runs a head of this config: transformers' own class where one fits."""
        raise NotImplementedError

    def renamed(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
        """The files' tensors by their names in `model_class`; what no pass of ours reads is left out."""
        return tensors

    def check_values(self, tensors: dict[str, Tensor], config: PreTrainedConfig) -> None:
        """What tensors have to hold beside their shapes.

        Raises:
            ValueError: they do not.
        """

    def check_map(self, d2t: Tensor, vocab_size: int, is_part: bool) -> None:
        """Refuse a map of draft tokens to the target's ids that cannot be one.

        Args:
            is_part: the draft vocabulary is a part of the target's; else the map has nothing to say.
        """
        moves = not is_part and bool(d2t.any())
        reorders = "reorders a draft vocabulary that is as large as the target's"
        reason = reorders if moves else wrong_reason(d2t, vocab_size)
        if reason is not None:
            raise ValueError(f"{self.files.name}: d2t {tuple(d2t.shape)} {reason}: give the draft as it was published.")

    @classmethod
    def writing_unsupported_reason(cls, config: PreTrainedConfig) -> str | None:
        """What about a head of this config the layout has no place for; `None` if it can be written."""
        return f"its config is of type {type(config).__name__}"

    @classmethod
    def published(cls, config: PreTrainedConfig, tensors: dict[str, Tensor]) -> Published:
        """The fields and tensors of a head in this layout: what `config` and `renamed` make of files, undone."""
        raise NotImplementedError

    @classmethod
    def write(
        cls, config: PreTrainedConfig, tensors: dict[str, Tensor], folder: str | Path, target_name: str | None = None
    ) -> None:
        """Write a head, its tensors by their names in `model_class`, to `folder`, which is created if missing.

        Args:
            target_name: what the file calls the target; by default as `config` does.

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
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_NAME).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})

    def contents(self) -> tuple[PreTrainedConfig, dict[str, Tensor]]:
        """The head's config, and its tensors as they are stored, by their names in `model_class`.

        Raises:
            ValueError: its tensors are not those that its config asks for.
        """
        config = self.config()
        kind = self.model_class(config)
        tensors = self.renamed(self.files.tensors, config)
        with torch.device("meta"):
            model = kind(config)
        optional = {name for name in model.state_dict() if name in tied_weights(model)}
        self._check(tensors, {name: tuple(value.shape) for name, value in model.state_dict().items()}, optional)
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
        kind = self.model_class(config)
        model = kind.from_pretrained(None, config=config, state_dict=tensors, **kwargs)
        model.name_or_path = model.config.name_or_path = self.files.name
        return model.eval()

    def _check(self, tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]], optional: set[str]) -> None:
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        missing = [f"{name} {shape}" for name, shape in expected.items() if name not in found and name not in optional]
        unknown = [f"{name} {shape}" for name, shape in found.items() if name not in expected]
        others = [
            f"{name} {shape} where its config says {expected[name]}"
            for name, shape in found.items()
            if name in expected and expected[name] != shape
        ]
        kinds = {"missing": missing, "unexpected": unknown, "of another shape": others}
        if misfits := misfits_of(kinds):
            raise ValueError(
                f"{self.files.name} does not hold the tensors of the head that its config.json describes "
                f"({misfits}): give the draft as it was published."
            )


def first_reason(reasons: Mapping[str, Any]) -> str | None:
    """The first of the reasons that hold; `None` if none does."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def misfits_of(kinds: Mapping[str, Collection[str]]) -> str:
    """Names of tensors by what is wrong with them, in words; empty where nothing is."""
    return "; ".join(f"{kind}: {_listed(sorted(names))}" for kind, names in kinds.items() if names)


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
