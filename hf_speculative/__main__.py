"""`python -m hf_speculative`."""

from .cli import main

main()
