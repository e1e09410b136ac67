"""Read the prompts of the command `generate`."""

import sys

#: the ways to give prompts
WAYS = "as an argument, on standard input, or see the --demo; `hf-speculative eval` reads files"


def given_prompts(arguments: list[str] | None) -> list[str]:
    """Return the given prompts, else standard input; none on a terminal.

    Raises:
        ValueError: an empty prompt, or no terminal and nothing on standard input.
    """
    if arguments:
        if "" in arguments:
            raise ValueError(f"prompt {arguments.index('') + 1} is empty: give a text to continue, {WAYS}.")
        return arguments
    if sys.stdin is not None and sys.stdin.isatty():
        return []
    text = sys.stdin.read() if sys.stdin is not None else ""
    if not text:
        raise ValueError(f"no prompt, and standard input is empty: give one {WAYS}.")
    return [text]
