"""The command `hf-speculative`, also as `python -m hf_speculative`."""

import logging

from .command.interrupts import ends_at_once

#: what they say while they are imported is nothing that a user of a command could change
LOUD = ("torchao", "torchao.utils", "torch.utils._pytree")


def quiet() -> None:
    """Hide what others say while they are imported."""
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> None:
    """Entry point of the console script."""
    quiet()
    with ends_at_once():
        from .cli import app
    app()


if __name__ == "__main__":
    main()
