"""What the target is asked to write about."""

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import check_prompts, prompt_ids
from ..command.prompts import built_in_prompts
from ..tokenizers.chat import as_chat, speaks_chat


def ids_of_prompts(
    prompts: Iterable | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, raw: bool = False
) -> list[list[int]]:
    """Ids of each prompt: those given, else built-in ones. Texts go through the chat template, if there is one.

    Args:
        raw: texts are continued as they are.

    Raises:
        ValueError, TypeError: there is nothing to write about, or a prompt is none.
    """
    if prompts is None:
        if tokenizer is None:
            raise ValueError(
                "`measure=True` has the target write texts, and no tokenizer is known that reads prompts: give `tokenizer=`, "
                "or `prompts=`, lists of ids."
            )
        prompts = built_in_prompts(speaks_chat(tokenizer) and not raw)
    check_prompts(prompts)
    found = [
        prompt_ids(as_chat(prompt, tokenizer, raw), index, model, tokenizer) for index, prompt in enumerate(prompts)
    ]
    if not found:
        raise ValueError("`prompts=[]` leaves nothing to write about: give one or more, or leave it out.")
    return found
