"""What the target is asked to write about, where nobody says: some code, some prose, as messages for a model that chats."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.prompts import check_prompts, prompt_ids

#: beginnings, for models that continue a text
BEGINNINGS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
    "The town had two bridges, and the older one was closed in the spring because",
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
    "Water boils at a lower temperature in the mountains. The reason for this is that",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser(",
    "To make bread at home you need flour, water, salt and time. First,",
    "SELECT name, count(*) AS orders\nFROM customers\nJOIN",
    "Dear Ms Martin,\n\nthank you for your letter of 3 May. We are sorry that",
)
#: and questions, for models that answer
QUESTIONS = (
    "Write a Python function that returns the words of a text by how often they occur.",
    "Why does water boil at a lower temperature in the mountains?",
    "A train leaves at 9:40 and arrives at 12:25. It stops for 15 minutes on the way. How long does it move?",
    "Summarise in three sentences how a bill becomes a law.",
    "Explain to a beginner what a hash table is, with an example.",
    "Write a short letter that asks a landlord to repair a window.",
    "Write an SQL query that lists the ten customers with the most orders of last year.",
    "Compare trains and planes for a journey of 500 kilometres, in a table.",
)


def ids_of_prompts(
    prompts: Iterable | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> list[list[int]]:
    """Ids of each prompt: those given, else built-in ones.

    Raises:
        ValueError, TypeError: there is nothing to write about, or a prompt is none.
    """
    if prompts is None:
        if tokenizer is None:
            raise ValueError(
                "`measure=True` has the target write texts, and no tokenizer is known that reads prompts: give `tokenizer=`, "
                "or `prompts=`, lists of ids."
            )
        is_chat = getattr(tokenizer, "chat_template", None) is not None
        prompts = [[{"role": "user", "content": text}] for text in QUESTIONS] if is_chat else BEGINNINGS
    check_prompts(prompts)
    found = [prompt_ids(prompt, index, model, tokenizer) for index, prompt in enumerate(prompts)]
    if not found:
        raise ValueError("`prompts=[]` leaves nothing to write about: give one or more, or leave it out.")
    return found
