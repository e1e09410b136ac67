"""`speculative_config.json`, beside a target's `config.json`: which draft it has, and settings.

transformers does not read that file: `AutoModelForCausalLM.from_pretrained` loads the target alone, as before.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils import cached_file

from ..call.option_table import CONFIG, DRAFTS, OPTIONS, checked
from ..call.option_types import wrong_type
from ..reports import files

FILE_NAME = "speculative_config.json"
#: a repository does not get to say that its output may differ from the target's, nor which files of a machine are read
KEPT_OUT = ("allow_lossy", "corpus", "optimize")
#: settings that it can hold
SETTINGS = tuple(one.name for one in OPTIONS if CONFIG in one.places and one.type.written_as and one.name not in KEPT_OUT)
#: what it says besides: where things are, and who wrote it
PLACES = ("draft_model", "draft_revision", "tokenizer", "draft_tokenizer", "hf_speculative_version")


def is_inside(source: str) -> bool:
    """Whether a file names the repository itself, or a subfolder of it."""
    return (source == "." or source.startswith("./")) and ".." not in re.split(r"[/\\]", source)


def is_hub_name(source: str) -> bool:
    """Whether it can be a repository of the Hub, with its owner."""
    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return "/" in source


@dataclass(frozen=True)
class Pairing:
    """What `speculative_config.json` holds; every key may be left out.

    Attributes:
        draft_model: `org/name` on the Hub, or `./draft`, the subfolder `draft` of the target's own repository; no other path
            of the machine. Or a method, as `suffix`; both, as `./draft+suffix`. None if the target's `generation_config` names
            a source of drafts.
        draft_revision: a branch, tag or commit of a draft given by name.
        tokenizer, draft_tokenizer: where the two tokenizers are, written like `draft_model` (`.` is the target's own
            repository); only if the vocabularies differ.
        hf_speculative_version: who wrote the file.
        settings: by their names in `SpeculativeConfig`; in the file they are keys beside the others.
    """

    draft_model: str | None = None
    draft_revision: str | None = None
    tokenizer: str | None = None
    draft_tokenizer: str | None = None
    hf_speculative_version: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        settings = {name: checked(name, value) for name, value in self.settings.items() if value is not None}
        object.__setattr__(self, "settings", settings)
        for name in PLACES:
            if not isinstance(getattr(self, name), (str, type(None))):
                raise wrong_type(name, getattr(self, name), "a text")
        for name in ("draft_model", "tokenizer", "draft_tokenizer"):
            source = self.model if name == "draft_model" else getattr(self, name)
            if source is not None and not (is_inside(source) or is_hub_name(source)):
                raise ValueError(f"`{name}={source!r}` is neither a subfolder (./draft) nor on the Hub (org/name).")
        if self.draft_revision is not None and (self.model is None or is_inside(self.model)):
            raise ValueError(f"`draft_revision={self.draft_revision!r}` is of no `draft_model` given by name: leave it out.")

    @property
    def parts(self) -> tuple[str | None, str | None]:
        """Where the draft model is, and methods that need no model; `None` for what it does not name."""
        return (None, None) if self.draft_model is None else DRAFTS.split(checked("draft_model", self.draft_model))

    @property
    def model(self) -> str | None:
        return self.parts[0]

    @classmethod
    def load(cls, repo: str, revision: str | None = None, **loading) -> "Pairing | None":
        """The pairing of a folder or Hub repository; None if it has no such file.

        Raises:
            ValueError, TypeError: the file is not what it should be.
        """
        found = cached_file(repo, FILE_NAME, revision=revision, _raise_exceptions_for_missing_entries=False, **loading)
        if found is None:
            return None
        try:
            return cls.from_dict(json.loads(Path(found).read_text(encoding="utf-8")))
        except TypeError as error:
            raise TypeError(f"{FILE_NAME} of {repo}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{FILE_NAME} of {repo}: {error}") from error

    @classmethod
    def from_dict(cls, values: Any) -> "Pairing":
        if not isinstance(values, dict):
            raise TypeError(f"a JSON object is needed, not a value of type {type(values).__name__}.")
        known = (*PLACES, *SETTINGS)
        if unknown := ", ".join(repr(key) for key in values if key not in known):
            raise ValueError(f"unknown key {unknown}: the keys are {', '.join(known)}.")
        settings = {name: value for name, value in values.items() if name in SETTINGS}
        return cls(**{name: values.get(name) for name in PLACES}, settings=settings)

    def save(self, folder: Path) -> None:
        places = {name: value for name in PLACES if (value := getattr(self, name)) is not None}
        values = places | dict(self.settings)
        files.write(folder / FILE_NAME, json.dumps(values, indent=2) + "\n")
