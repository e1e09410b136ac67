"""Speculative decoding: `model.generate(..., custom_generate=<this repository>, trust_remote_code=True, draft_model=...)`."""

import inspect
import os

import huggingface_hub
from transformers import GenerationMixin

import hf_speculative

from .defaults import DRAFT_MODEL, METHOD, SETTINGS

SOURCES = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
#: transformers hands these over as well: they said where this file comes from
LOADING = ("cache_dir", "force_download", "local_files_only", "proxies", "repo_type", "revision", "token")


def generate(*args, model, **kwargs):
    """`model.generate` with a draft: takes all that `hf_speculative.generate` takes.

    Args:
        *args: positional arguments as `model.generate` takes them: `inputs`, `generation_config`, ...
        model: the target, handed over by transformers.
        draft_model: a smaller model, or the name of one; None is plain decoding.
        **kwargs: anything else that `model.generate` takes.
    """
    names = list(inspect.signature(GenerationMixin.generate).parameters)[1:]
    kwargs |= dict(zip(names, args, strict=False))
    kwargs = {name: value for name, value in kwargs.items() if name not in LOADING}
    if kwargs.get("assistant_model") is None:
        kwargs.pop("assistant_model", None)  # transformers fills in what a call leaves out; None would mean: no draft
    config = kwargs.get("speculative_config") or hf_speculative.SpeculativeConfig()
    given = kwargs.get("generation_config")

    def said(name):
        return kwargs[name] if kwargs.get(name) is not None else getattr(given, name, None)

    is_open = "draft_model" not in kwargs and all(said(name) is None for name in SOURCES)
    draft = [part for part in (DRAFT_MODEL, METHOD) if part is not None]
    if draft and is_open:
        kwargs["draft_model"] = [_draft_of(model, part) if part is DRAFT_MODEL else part for part in draft]
    if is_open and (draft or any(getattr(model.generation_config, name, None) for name in SOURCES)):
        settings = dict(SETTINGS)
        if not (model.generation_config.do_sample if said("do_sample") is None else said("do_sample")):
            settings.pop("draft_sample_method", None)  # refused in a call that samples nothing
        kwargs["speculative_config"] = config.over(hf_speculative.SpeculativeConfig(**settings))
    return hf_speculative.generate(model, **kwargs)


def _draft_of(model, draft: str) -> str:
    """The name or folder of the default draft."""
    if not draft.startswith("."):
        if os.path.exists(draft):
            found = f"the default draft is {draft} on the Hub, and the working directory has something of that name"
            way_out = "Pass `draft_model=`, or call this from another directory."
            raise ValueError(f"{found}, which would be loaded in its place. {way_out}")
        return draft
    folder = model.name_or_path
    if not os.path.isdir(folder):
        pattern = os.path.normpath(draft) + "/*"
        revision = getattr(model.config, "_commit_hash", None)
        folder = huggingface_hub.snapshot_download(folder, revision=revision, allow_patterns=pattern)
    if not os.path.isdir(os.path.join(folder, draft)):
        raise ValueError(f"the default draft {draft} is not in {model.name_or_path}: pass `draft_model=`.")
    return os.path.join(folder, draft)
