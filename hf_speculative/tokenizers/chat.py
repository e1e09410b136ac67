"""Chat templates: prompts of messages, the ids around a turn, and the tokens that end an answer."""

from typing import Any

import torch
from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: stands for a text in a rendered template
MARK = "\x00"


def speaks_chat(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether there is a chat template."""
    return getattr(tokenizer, "chat_template", None) is not None


def as_chat(prompt: Any, tokenizer: PreTrainedTokenizerBase | None, raw: bool = False) -> Any:
    """A text as the message of a user, where there is a chat template; all else as it is.

    Args:
        raw: a text stays a text.
    """
    is_said = isinstance(prompt, str) and not raw and speaks_chat(tokenizer)
    return [{"role": "user", "content": prompt}] if is_said else prompt


def around_a_turn(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The ids before what a user says first, and those from there to where the answer begins.

    Raises:
        ValueError: the template takes no message of a user.
    """
    try:
        text = _rendered(tokenizer, [{"role": "user", "content": MARK}], add_generation_prompt=True)
    except (TemplateError, ValueError) as error:
        raise ValueError(f"the chat template takes no message of a user ({error}).") from error
    before, mark, after = text.partition(MARK)
    if not mark:
        raise ValueError("the chat template does not show what a user says.")
    return _ids(tokenizer, before), _ids(tokenizer, after)


def ids_of(value: Any) -> list[int]:
    """End tokens as `generate` takes them: a number, a list, a tensor, or `None`."""
    return [] if value is None else torch.as_tensor(value).flatten().tolist()


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that end an answer: those of the generation config, then what the template puts after one."""
    found = ids_of(model.generation_config.eos_token_id)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
    try:
        after = _ids(tokenizer, _rendered(tokenizer, messages).partition(MARK)[2])
    except (TemplateError, ValueError):  # of a template that takes no answer
        after = []
    return list(dict.fromkeys([*found, *(token for token in after[:1] if token in tokenizer.all_special_ids)]))


def chat_keywords(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, raw: bool) -> dict[str, Any]:
    """Keywords of `generate` with which an answer ends where the template ends one."""
    if raw or tokenizer is None or not speaks_chat(tokenizer):
        return {}
    ends, eos = end_tokens(model, tokenizer), model.generation_config.eos_token_id
    return {} if not ends or ends == ids_of(eos) else {"eos_token_id": ends}


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], **kwargs) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **kwargs))


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
