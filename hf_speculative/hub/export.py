"""`custom_generate/`: a repository that carries the code of speculative decoding, which transformers runs by itself."""

from pathlib import Path
from typing import Any

from ..reports import files
from .pairing_file import Pairing
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
