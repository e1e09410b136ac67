"""The command `hf-speculative`, also as `python -m hf_speculative`."""

import sys


def main() -> None:
    """Run the command. It is imported here, so that Ctrl-C ends an import as quietly as anything else."""
    try:
        from .cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
