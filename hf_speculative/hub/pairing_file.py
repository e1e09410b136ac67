"""`speculative_config.json`, beside a target's `config.json`: which draft it has, and settings.

transformers does not read that file: `AutoModelForCausalLM.from_pretrained` loads the target alone, as before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils import cached_file

from ..call.checks import check_positive_int
from ..reports import files
from ..verification import rule_for

FILE_NAME = "speculative_config.json"


def is_inside(source: str) -> bool:
    """Whether a file names the repository itself, or a subfolder of it."""
    return (source == "." or source.startswith("./")) and ".." not in re.split(r"[/\\]", source)


def is_hub_name(source: str) -> bool:
    """Whether a file names a repository of the Hub, with its owner."""
    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return "/" in source


@dataclass(frozen=True)
class Pairing:
    """What `speculative_config.json` holds; every key may be left out.

    Attributes:
        draft_model: `org/name` on the Hub, or `./draft`, the subfolder `draft` of the target's own repository; nothing else of
            the machine that it is loaded on. None where the target's `generation_config` names a source of drafts.
        draft_revision: a branch, tag or commit of a draft given by name.
        tokenizer, draft_tokenizer: where both models' tokenizers are, written like `draft_model` (`.` is the target's own
            repository); only where the vocabularies differ.
        num_draft_tokens, reproducible, compile, cuda_graphs, vocabulary_mapping, rule: as in `SpeculativeConfig`.
        hf_speculative_version: who wrote the file.
    """

    draft_model: str | None = None
    draft_revision: str | None = None
    tokenizer: str | None = None
    draft_tokenizer: str | None = None
    num_draft_tokens: int | None = None
    reproducible: bool | None = None
    compile: bool | None = None
    cuda_graphs: bool | None = None
    vocabulary_mapping: str | None = None
    rule: str | None = None
    hf_speculative_version: str | None = None

    def __post_init__(self):
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None:
                continue
            if name == "num_draft_tokens":
                check_positive_int(name, value)
                continue
            kind = bool if name in ("reproducible", "compile", "cuda_graphs") else str
            if not isinstance(value, kind):
                raise TypeError(f"`{name}={value!r}` is a {type(value).__name__}: write a {kind.__name__}.")
        rule_for(self.rule)
        for name in ("draft_model", "tokenizer", "draft_tokenizer"):
            source = getattr(self, name)
            if source is not None and not (is_inside(source) or is_hub_name(source)):
                raise ValueError(
                    f"`{name}={source!r}` is neither a subfolder of the repository, as ./draft, nor a repository on the Hub, "
                    "as org/name: write one of them."
                )
        if self.draft_revision is not None and (self.draft_model is None or is_inside(self.draft_model)):
            raise ValueError(
                f"`draft_revision={self.draft_revision!r}` has no effect without a `draft_model` given by name: leave it out."
            )

    @classmethod
    def load(cls, repo: str, revision: str | None = None, **loading) -> Pairing | None:
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
    def from_dict(cls, values: Any) -> Pairing:
        if not isinstance(values, dict):
            raise TypeError(f"a JSON object is needed, not a {type(values).__name__}.")
        known = [field.name for field in fields(cls)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(f"unknown key {', '.join(map(repr, unknown))}: the keys are {', '.join(known)}.")
        return cls(**values)

    def save(self, folder: Path) -> None:
        values = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        files.write(folder / FILE_NAME, json.dumps(values, indent=2) + "\n")
