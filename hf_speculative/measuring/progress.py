"""The progress bar of an evaluation."""

from tqdm.auto import tqdm

from ..call.statistics import Statistics
from .journal import Call


class Shown(tqdm):
    """Calls done, with the acceptance so far. Speed is reported at the end, by medians."""

    def __init__(self, is_shown: bool, total: int):
        super().__init__(total=total, unit="call", disable=not is_shown, dynamic_ncols=True)
        self.statistics = Statistics()

    def count(self, call: Call) -> None:
        """Count a finished call."""
        if call.statistics is not None:
            self.statistics += call.statistics
            self.statistics.rows.clear()
        self.update()
        counts = self.statistics
        if counts.num_draft_tokens:
            told = f"accepted {counts.draft_acceptance_rate:.0%}, {counts.mean_acceptance_length:.2f} tokens a step"
            self.set_postfix_str(told, refresh=False)
