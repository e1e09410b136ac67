"""The model card of a trained draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..hub.card_text import without_folders
from ..hub.readme import edit, escaped, grown, render
from ..measuring.render import markdown
from ..reports import files
from . import wording
from .results import Trained

TAGS = ["speculative-decoding", "draft-model"]


def write(result: Trained) -> None:
    """Writes README.md beside the draft; a section of ours in one that is there already."""
    path = result.folder / "README.md"
    existing = path.read_bytes().decode() if path.exists() else ""
    files.write(path, text(result, existing))


def text(result: Trained, existing: str = "") -> str:
    where = result.environment
    versions = ", ".join(f"{name} {where[name]}" for name in ("hf_speculative", "transformers", "torch", "python"))
    body = render(
        "card.md",
        room="training",
        target=wording.short(result.target),
        kind=result.kind[:1].upper() + result.kind[1:],
        summary=wording.summary(result),
        usage=wording.usage(result),
        table=Markup("\n".join(markdown.of_table(wording.acceptance(result), "decoding"))),
        facts=wording.facts(result),
        notes=result.notes,
        hardware=f"{where['device']}; cores: {where['cores']}, threads: {where['threads']}; {versions}",
        command=without_folders(where["command"]),
    )
    return edit(
        existing, "training", escaped(wording.title(result)), body, lambda metadata: _metadata(metadata, result)
    )


def _metadata(existing: dict[str, Any], result: Trained) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tags": grown(existing.get("tags"), TAGS),
        "library_name": existing.get("library_name") or "transformers",
    }
    if not Path(result.target).is_absolute():  # a folder of this machine means nothing to others
        found["base_model"] = existing.get("base_model") or result.target
    return found
