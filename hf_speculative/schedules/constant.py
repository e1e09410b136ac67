"""The same draft length in every round."""

from ..interfaces import Schedule


class Constant(Schedule):
    def __init__(self, num_tokens: int):
        self.num_tokens = num_tokens

    def num_draft_tokens(self, row: int) -> int:
        return self.num_tokens
