"""Prompts that commands use by default: some code, some prose."""

#: the first beginnings are Python, which the embedded pair continues
NUM_PYTHON = 2
#: beginnings, for models that continue a text
BEGINNINGS = (
    'def read_lines(path, encoding="utf-8"):\n    """Return the lines of a file',
    "class TestCase(unittest.TestCase):\n    def setUp(self):\n",
    "The town had two bridges, and the older one was closed in the spring because",
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


def built_in_prompts(is_chat: bool) -> tuple[str, ...]:
    """Questions for a model that answers, beginnings for one that continues a text."""
    return QUESTIONS if is_chat else BEGINNINGS
