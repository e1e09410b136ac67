"""The interface of grammars for drafters: the tokens that a row may get, and those that it must."""

from collections.abc import Sequence
from typing import Protocol


class Guide(Protocol):
    """What a row's grammar says of the tokens after its `text`, prompt included, and then `path`, draft tokens."""

    def allows(self, text: Sequence[int], path: tuple[int, ...], token: int) -> bool:
        """Whether `token` may come next."""

    def forced(self, text: Sequence[int], path: tuple[int, ...]) -> list[int]:
        """What comes next whatever the model says; empty: nothing is certain."""
