"""The command `hf-speculative`, also as `python -m hf_speculative`."""

from .command.interrupts import ends_at_once


def main() -> None:
    """Entry point of the console script."""
    with ends_at_once():
        from .cli import app
    app()


if __name__ == "__main__":
    main()
