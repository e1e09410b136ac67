"""Load and save a target together with its draft: `from_pretrained` and `save_pretrained`.

`speculative_config.json`, beside the target's `config.json`, says which draft it has, and settings. transformers does not read
that file: `AutoModelForCausalLM.from_pretrained` loads the target alone, as before.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME, cached_file

from ..call.attached import Attached, own_generate
from ..call.configuration import SpeculativeConfig, first_given
from ..call.option_table import CONFIG, DRAFTS, OPTIONS, ROWS, checked
from ..call.option_types import wrong_type
from ..call.sources import SETTINGS_OF_ONE, is_configured
from ..generation import DraftModel, attach
from ..models import device_of
from ..models.loading import load_model
from ..names import AND, LOADING, OF_REPOSITORY
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
        return DRAFTS.split(checked("draft_model", self.draft_model))

    @property
    def model(self) -> str | None:
        return self.parts[0]

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


DRAFT_FOLDER = "draft"
#: objects that are saved in files of their own
TOKENIZERS = ("tokenizer", "draft_tokenizer")


def from_pretrained(
    pretrained_model_name_or_path: str | Path,
    *,
    draft_kwargs: dict[str, Any] | None = None,
    speculative_config: SpeculativeConfig | None = None,
    **kwargs,
) -> PreTrainedModel:
    """Load a target with the draft that its repository names, attached: every `generate` speculates.

    The repository names its draft in `speculative_config.json` (docs/hub.md), which `save_pretrained` writes. Or its
    `generation_config.json` names another source of drafts, such as `prompt_lookup_num_tokens`.

    Args:
        pretrained_model_name_or_path: a folder, or the name of a Hub repository.
        draft_kwargs: keywords of the draft's own `from_pretrained`. By default it gets the target's dtype and device, and the
            keywords about downloads: `token`, `cache_dir`, `local_files_only`, ... To run code of a repository other than
            the target's, give it its own `trust_remote_code`.
        speculative_config: settings that override those of the repository.
        **kwargs: keywords of the target's `from_pretrained`: `dtype`, `device_map`, `revision`, `attn_implementation`, ...

    Returns:
        The target, in eval mode, its draft attached; `hf_speculative.detach` makes it plain again.

    Raises:
        TypeError: a setting was given as a keyword.
        ValueError: the repository names no draft, or its file has an unknown key.
        OSError: a repository or file does not exist.
    """
    repo = str(pretrained_model_name_or_path)
    _check_no_setting(kwargs, "speculative_config")
    if repo.startswith((".", "/")) and not Path(repo).is_dir():
        raise OSError(f"{repo}: no such folder.")
    loading = _only(kwargs, LOADING)
    here = loading | _only(kwargs, OF_REPOSITORY)
    pairing = Pairing.load(repo, **here) or Pairing()
    if pairing.draft_model is None and not _names_a_source(repo, here):
        # Raises where there is no such repository.
        cached_file(repo, CONFIG_NAME, **_only(here, (*LOADING, "revision")))
        raise ValueError(f"{repo} names no draft, in {FILE_NAME} or generation_config.json: `save_pretrained` or `attach` one.")
    # A `custom_generate/` beside the weights would take the place of `generate`, where the draft is attached.
    target = load_model(repo, **kwargs)
    if own_generate(target) is not None:
        del target.generate
    tokenizer_name = pairing.tokenizer or ("." if pairing.draft_tokenizer is not None else None)
    elsewhere = loading | ({} if pairing.draft_revision is None else {"revision": pairing.draft_revision})
    saved = SpeculativeConfig(
        tokenizer=_tokenizer(tokenizer_name, repo, here, {}),
        draft_tokenizer=_tokenizer(pairing.draft_tokenizer, repo, here, elsewhere),
        **pairing.settings,
    )
    draft = None
    if pairing.model is not None:
        name, place = _located(pairing.model, repo, here, elsewhere)
        own = {"dtype": target.dtype} | place | (draft_kwargs or {})
        draft = load_model(name, **own)
        if "device_map" not in own and device_of(draft) != device_of(target):
            draft.to(device_of(target))
    elif draft_kwargs:
        raise ValueError(f"`draft_kwargs={draft_kwargs!r}` has no effect: {repo} names no draft model. Leave it out.")
    parts = [part for part in (draft, pairing.parts[1]) if part is not None]
    return attach(target, parts or None, config=(speculative_config or SpeculativeConfig()).over(saved))


def save_pretrained(
    model: PreTrainedModel,
    save_directory: str | Path,
    *,
    draft_model: DraftModel | None = None,
    draft_revision: str | None = None,
    config: SpeculativeConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    push_to_hub: str | None = None,
    token: str | None = None,
    private: bool | None = None,
    **kwargs,
) -> None:
    """Save a target in a folder that names its draft, for `hf_speculative.from_pretrained`; it stays an ordinary checkpoint.

    Args:
        model: the target. The draft and settings attached to it are saved, unless others are given here.
        save_directory: the folder.
        draft_model: a model, saved in the subfolder `draft`; a Hub name or a folder within `save_directory`, of which only the
            name is written; a method, as `"suffix"`. Or a model or name and a method.
        draft_revision: a branch, tag or commit of a draft given by name.
        config: settings; a file cannot hold objects (`schedule`, `generator`, a rule without a name) or a `corpus`.
        tokenizer: the target's tokenizer, saved as well.
        draft_tokenizer: the draft's tokenizer, if the vocabularies differ; saved as well.
        push_to_hub: upload the folder to this Hub repository, which is created if missing.
        token, private: for that repository.
        **kwargs: keywords of the target's own `save_pretrained`.

    Raises:
        TypeError: not a transformers model, or a keyword that nothing takes.
        ValueError: nothing to name as a draft, or a setting that no file can hold.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"`model` is of type {type(model).__name__}: pass a transformers model, adapters merged.")
    _check_no_setting(kwargs, "config")
    known = inspect.signature(model.save_pretrained).parameters.keys()
    for name in kwargs.keys() - known - inspect.signature(PreTrainedModel.save_pretrained).parameters.keys():
        raise TypeError(f"`{name}={kwargs[name]!r}` has no effect on `save_pretrained`: leave it out.")
    folder, config = Path(save_directory), config or SpeculativeConfig()
    draft_model = checked("draft_model", draft_model)
    if isinstance(attached := own_generate(model), Attached):  # not of a patch, which is for all models
        theirs, draft_model = attached.config, first_given(draft_model, attached.draft_model)
        if draft_model != attached.draft_model:
            theirs = replace(theirs, **dict.fromkeys(SETTINGS_OF_ONE))  # about what is attached
        config = config.over(theirs)
    left_out = (*TOKENIZERS, "allow_lossy", "learn", "optimize")
    given = {name: value for name, value in vars(config).items() if value is not None and name not in left_out}
    written = {name: given[name] for name in SETTINGS if isinstance(given.get(name), (str, int, float))}
    if held := ", ".join(f"`{name}`" for name in given if name not in written):
        raise ValueError(f"{held}: {FILE_NAME} cannot hold that: give it in the call after loading.")
    if draft_model is None and not is_configured(model.generation_config):
        raise ValueError("nothing to name as a draft: give `draft_model=`, or attach one first.")
    tokenizer, draft_tokenizer = tokenizer or config.tokenizer, draft_tokenizer or config.draft_tokenizer
    if draft_tokenizer is not None and tokenizer is None:
        raise ValueError("`draft_tokenizer` has no effect without `tokenizer`: give both.")
    draft, methods = DRAFTS.split(draft_model)
    if isinstance(draft, str) and Path(draft).is_dir():
        draft = _written(Path(draft).resolve(), folder.resolve())
    elif not isinstance(draft, (PreTrainedModel, str, type(None))):
        raise ValueError(f"`draft_model` is of type {type(draft).__name__}: give a model, a name or a method.")

    from ..version import __version__

    own = f"./{DRAFT_FOLDER}"
    pairing = Pairing(
        draft_model=AND.join(filter(None, (own if isinstance(draft, PreTrainedModel) else draft, methods))) or None,
        draft_revision=draft_revision,
        tokenizer="." if draft_tokenizer is not None else None,
        draft_tokenizer=own if draft_tokenizer is not None else None,
        hf_speculative_version=__version__,
        settings=written,
    )
    files.check_output("`save_directory`:", folder / FILE_NAME, makes_folders=True)
    model.save_pretrained(folder, **kwargs)
    beside = folder / DRAFT_FOLDER
    own_draft = draft if isinstance(draft, PreTrainedModel) else None
    for part, place in ((own_draft, beside), (tokenizer, folder), (draft_tokenizer, beside)):
        if part is not None:
            part.save_pretrained(place)
    pairing.save(folder)
    if push_to_hub is not None:
        api = HfApi(token=token)
        api.create_repo(push_to_hub, private=private, exist_ok=True)
        api.upload_folder(repo_id=push_to_hub, folder_path=folder, commit_message="A target and its draft")


def _written(draft: Path, folder: Path) -> str:
    """How the file names a draft that lies in a folder."""
    if not draft.is_relative_to(folder):
        raise ValueError(f"`draft_model={str(draft)!r}` is a folder elsewhere: give the loaded model, or a Hub name.")
    return f"./{draft.relative_to(folder).as_posix()}"


def _check_no_setting(kwargs: dict[str, Any], option: str) -> None:
    """transformers takes keywords that it does not know, and drops them."""
    for name in kwargs:
        if name in ROWS and CONFIG in ROWS[name].places:
            way_out = f"give `{option}=hf_speculative.SpeculativeConfig({ROWS[name].name}=...)`"
            raise TypeError(f"`{name}={kwargs[name]!r}` is a setting: {way_out}.")


def _only(kwargs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


def _names_a_source(repo: str, loading: dict[str, Any]) -> bool:
    """Whether the repository's generation_config names a source of drafts."""
    try:
        config = GenerationConfig.from_pretrained(repo, **_only(loading, (*LOADING, "revision")))
    except OSError:
        return False
    return is_configured(config)


def _located(source: str, repo: str, here: dict[str, Any], elsewhere: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the keywords to load `source` by: a subfolder of the target's repository, or a repository of its own."""
    if not is_inside(source):
        if Path(source).exists():  # transformers would prefer it to the repository on the Hub
            named = f"{FILE_NAME} of {repo} names {source} on the Hub, and the working directory has something of that name"
            raise ValueError(f"{named}, which would be loaded in its place: call this from another directory, or rename that.")
        return source, elsewhere
    subfolder = Path(source).as_posix()
    if Path(repo).is_dir():
        folder = (Path(repo) / subfolder).resolve()
        if not folder.is_dir():
            raise OSError(f"{FILE_NAME} of {repo} names {source}, and there is no such subfolder.")
        if not folder.is_relative_to(Path(repo).resolve()):
            raise ValueError(f"{FILE_NAME} of {repo} names {source}, a link that leads out of it: put the draft there.")
    return repo, here if subfolder == "." else here | {"subfolder": subfolder}


def _tokenizer(source: str | None, repo: str, here: dict[str, Any], elsewhere: dict[str, Any]):
    if source is None:
        return None
    name, place = _located(source, repo, here, elsewhere)
    return AutoTokenizer.from_pretrained(name, **place)
