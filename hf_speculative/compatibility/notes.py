"""What looks wrong about a pair by its files alone: a head was made for another target."""

from pathlib import PurePath
from typing import Any

from transformers import PreTrainedModel


def notes_on(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[str, ...]:
    """Sentences on what is likely to cost acceptance."""
    wanted, name = made_for(draft), target.config.name_or_path
    if not wanted or not name or PurePath(wanted).name.lower() == PurePath(name).name.lower():
        return ()
    return (
        f"the draft names {wanted} as the target it was made for, and this one is {name}: give that target, or its own draft",
    )


def made_for(draft: PreTrainedModel) -> str | None:
    """The target that a draft's config names: speculators' verifier, or the base model of an adapter."""
    verifier: Any = getattr(draft.config, "speculators_config", None) or {}
    verifier = verifier.get("verifier", {}) if isinstance(verifier, dict) else {}
    return verifier.get("name_or_path") or getattr(draft.config, "base_model_name_or_path", None)
