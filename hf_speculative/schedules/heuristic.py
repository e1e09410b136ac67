"""transformers' schedules: a constant, and the heuristic of two tokens more after a whole draft, one less after any other.

With the heuristic, each row has its own length, kept for one call: nothing is written to a model's config, so a seed gives the
same tokens the first and the tenth time. Decisions depend on past rounds only, so the output stays exact.
"""

from ..interfaces import Schedule
from ..types import Round


class Constant(Schedule):
    def __init__(self, num_tokens: int):
        self.num_tokens = num_tokens

    def num_draft_tokens(self, row: int) -> int:
        return self.num_tokens


class Heuristic(Schedule):
    def __init__(self, num_tokens: int):
        self.start = num_tokens
        self.num_tokens: dict[int, int] = {}

    def num_draft_tokens(self, row: int) -> int:
        return self.num_tokens.get(row, self.start)

    def update(self, round: Round) -> None:
        for row, drafted, accepted in zip(round.rows, round.num_drafted, round.num_accepted, strict=True):
            if drafted:
                step = 2 if accepted == drafted else -1
                self.num_tokens[row] = max(1, self.num_draft_tokens(row) + step)
        self.num_tokens = {row: num for row, num in self.num_tokens.items() if row in round.rows}
