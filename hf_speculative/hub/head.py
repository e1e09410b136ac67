"""A draft head, written in a layout that other programs read: speculators' for vLLM, EAGLE's for SGLang."""

import json
from pathlib import Path

from transformers import PreTrainedModel

from ..heads import layout_of, write_head
from ..reports import files


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
