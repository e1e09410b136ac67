"""What looks wrong about a pair by its files alone: which target a head was made for, whose chat format a draft learned."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONVERSATION = [
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "How can I help?"},
    {"role": "user", "content": "Tell me a story."},
]


def notes_on(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[str, ...]:
    """Sentences on what is likely to cost acceptance; of a target alone there is nothing to say."""
    if draft is None:
        return ()
    return tuple(note for note in (_other_target(target, draft), _other_format(tokenizer, draft_tokenizer)) if note)


def made_for(draft: PreTrainedModel) -> str | None:
    """The target that a draft's config names: speculators' verifier, or the base model of an adapter."""
    verifier: Any = getattr(draft.config, "speculators_config", None) or {}
    verifier = verifier.get("verifier", {}) if isinstance(verifier, dict) else {}
    return verifier.get("name_or_path") or getattr(draft.config, "base_model_name_or_path", None)


def _other_target(target: PreTrainedModel, draft: PreTrainedModel) -> str | None:
    wanted, name = made_for(draft), target.config.name_or_path
    if not wanted or not name or PurePath(wanted).name.lower() == PurePath(name).name.lower():
        return None
    return f"the draft names {wanted} as the target it was made for, and this one is {name}: give that target, or its own draft"


def _other_format(own: PreTrainedTokenizerBase | None, other: PreTrainedTokenizerBase | None) -> str | None:
    if own is None or other is None:
        return None
    has_own, has_other = (getattr(one, "chat_template", None) is not None for one in (own, other))
    if has_own and not has_other:
        return (
            "the target's tokenizer has a chat template and the draft's has none. The draft may be a base model that has not "
            "seen chats: look for an instruction-tuned one"
        )
    if has_other and not has_own:
        return (
            "the draft's tokenizer has a chat template and the target's has none. The target may be a base model: look "
            "for the base model of the draft, or the instruction-tuned target"
        )
    if not has_own:
        return None
    rendered = [_rendered(one) for one in (own, other)]
    if None in rendered or rendered[0] == rendered[1]:
        return None
    return (
        f"the chat templates differ: the target's writes {_beginning(rendered)[0]!r} where the draft's writes "
        f"{_beginning(rendered)[1]!r}. So the draft learned another format of chats: look for a draft of the target's "
        "family"
    )


def _rendered(tokenizer: PreTrainedTokenizerBase) -> str | None:
    try:
        return str(tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError):
        return None


def _beginning(texts: list[str | None]) -> list[str]:
    """From where two texts differ, a few characters of each."""
    one, other = (text or "" for text in texts)
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return [text[start : start + 24] for text in (one, other)]
