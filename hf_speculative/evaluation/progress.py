"""What a user sees while an evaluation runs."""

from __future__ import annotations

from tqdm.auto import tqdm

from ..statistics import Statistics
from .journal import Call


class Shown:
    """The progress bar: calls done, with what was accepted and how much faster it was so far."""

    def __init__(self, is_shown: bool, total: int, num_missing: int):
        self.bar = tqdm(total=total, initial=total - num_missing, unit="call", disable=not is_shown, dynamic_ncols=True)
        self.statistics, self.plain, self.speculative = Statistics(), [0.0, 0.0], [0.0, 0.0]

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *exception) -> None:
        self.bar.close()

    def say(self, what: str, at_once: bool = False) -> None:
        self.bar.set_description(what, refresh=at_once)

    def count(self, call: Call) -> None:
        sums = self.plain if call.statistics is None else self.speculative
        sums[0] += call.num_new_tokens
        sums[1] += call.seconds
        if call.statistics is not None:
            self.statistics += call.statistics
            self.statistics.rows.clear()
        self.bar.update()
        if self.statistics.num_draft_tokens and self.plain[1]:
            speedup = self.speculative[0] / self.speculative[1] / (self.plain[0] / self.plain[1])
            accepted = self.statistics.draft_acceptance_rate
            self.bar.set_postfix_str(f"accepted {accepted:.0%}, {speedup:.2f}x plain on average", refresh=False)
