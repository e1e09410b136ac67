"""The model card of a trained draft."""

from pathlib import Path

from markupsafe import Markup

from ..hub.card import without_folders
from ..hub.readme import edit, escaped, render, with_tags
from ..measuring.render.result_table import of_table
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
        "training/card.md",
        target=wording.short(result.target),
        kind=result.kind[:1].upper() + result.kind[1:],
        summary=wording.summary(result),
        usage=wording.usage(result),
        table=Markup("\n".join(of_table(wording.acceptance(result), "decoding"))),
        curve=Markup("\n".join(of_table(wording.curve(result), "steps"))),
        facts=wording.facts(result),
        hardware=f"{where['device']}; cores: {where['cores']}, threads: {where['threads']}; {versions}",
        command=without_folders(where["command"]),
    )
    is_folder = Path(result.target).is_absolute()  # of this machine, which means nothing to others
    target = None if is_folder else result.target
    title = escaped(f"{wording.short(result.folder)}, a draft for {wording.short(result.target)}")
    return edit(existing, "training", title, body, lambda metadata: with_tags(metadata, TAGS, target))
