"""Folders for other programs: `custom_generate/`, which transformers runs by itself, and a draft head in another layout."""

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..heads import layout_of, write_head
from ..reports import files
from .pairing import Pairing
from .readme import edit, render, with_tags

FILES = Path(__file__).parent / "custom_generate"
COPIED = ("generate.py", "requirements.txt")
TAGS = ["custom_generate", "speculative-decoding"]


def export_generate(folder: str | Path, *, repo_id: str | None = None) -> Path:
    """Write a `custom_generate/` for `model.generate(custom_generate=folder, trust_remote_code=True, draft_model=...)`.

    The folder may be empty, or hold a model's weights; transformers' `from_pretrained(folder, trust_remote_code=True)` then
    gives a model whose `generate` speculates. An existing README.md keeps all its text.

    Args:
        folder: where to write; created if missing. Calls that name no draft have the one of its `speculative_config.json`, if
            it has one.
        repo_id: the Hub repository that the folder is for, named in its README.

    Returns:
        The folder of the code.

    Raises:
        ValueError: the folder's README or `speculative_config.json` cannot be read, or names a `draft_revision`.
    """
    folder = Path(folder)
    readme, code = folder / "README.md", folder / "custom_generate"
    for path in (readme, *(code / name for name in (*COPIED, "defaults.py"))):
        files.check_output("`folder`:", path, makes_folders=True)
    pairing = (Pairing.load(str(folder)) if folder.is_dir() else None) or Pairing()
    if (revision := pairing.draft_revision) is not None:
        raise ValueError(f"`draft_revision={revision!r}`: this code loads the newest one: put the draft into a subfolder.")
    draft_model = pairing.draft_model
    num_draft_tokens = None if draft_model is None else pairing.settings.get("num_draft_tokens")
    shown: dict[str, Any] = {"draft_model": draft_model, "num_draft_tokens": num_draft_tokens}
    shown |= {"has_weights": (folder / "config.json").exists(), "repo": repo_id or str(folder)}
    body, title = render("hub/custom_generate/README.md", **shown), "Speculative decoding through `custom_generate`"
    existing = readme.read_bytes().decode() if readme.exists() else ""
    text = edit(existing, "custom_generate", title, body, lambda metadata: with_tags(metadata, TAGS))
    code.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        files.write(code / name, (FILES / name).read_bytes())
    defaults = (FILES / "defaults.py").read_text(encoding="utf-8")
    for name, value in zip(("DRAFT_MODEL", "METHOD"), pairing.parts, strict=True):
        defaults = defaults.replace(f"{name}: str | None = None", f"{name}: str | None = {value!r}")
    defaults = defaults.replace("SETTINGS: dict = {}", f"SETTINGS: dict = {dict(pairing.settings)!r}")
    files.write(code / "defaults.py", defaults)
    files.write(readme, text)
    return code


def export_head(
    head: PreTrainedModel | str | Path, folder: str | Path, layout: str = "speculators", target_name: str | None = None
) -> Path:
    """Write a draft head to a folder of its own. Tensors keep their values and types, bit for bit.

    Args:
        head: a Hub name, a folder, or a model that was loaded or trained.
        folder: where to write; created if missing.
        layout: "speculators", which vLLM reads, "eagle", which SGLang reads, or "z-lab", which DFlash's own package reads.
        target_name: the Hub name or folder of the target, for speculators' config (`speculators_config.verifier`). By it `vllm
            serve FOLDER` finds the target. Default: as in the head's own config.

    Returns:
        The folder.

    Raises:
        ValueError: there is no head, or the layout has no place for it or for the target's name.
    """
    folder = Path(folder)
    files.check_output("`folder`:", folder / "config.json", makes_folders=True)
    found = head if isinstance(head, PreTrainedModel) else layout_of(head)
    if found is None:
        raise ValueError(f"{head} holds no draft head that is known here: give the folder or the Hub name of one.")
    write_head(found, folder, layout, target_name)
    return folder


def target_named(folder: str | Path) -> str | None:
    """What the config of a head in speculators' layout calls the target; `None` if it does not say."""
    fields = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return ((fields.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
