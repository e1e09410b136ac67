"""Recommend a setting from the speedups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..reports.formats import percent
from .settings import Setting, temperature_name
from .speedup import FEWEST_OF, INTERVAL, Speedup


@dataclass(frozen=True)
class Recommendation:
    """The recommended setting at one temperature.

    Attributes:
        setting: a draft that is clearly faster than plain decoding; plain decoding if all drafts are slower; `None` if the
            figures do not tell.
        best: the draft with the highest speedup; `speedup` is its own, over plain decoding.
        runner_up: the next best draft; `lead` is the speedup of `best` over it. `None` without one.
        spread_name: the kind of spread of the speedups.
    """

    setting: Setting | None
    best: Setting
    speedup: Speedup
    runner_up: Setting | None = None
    lead: Speedup | None = None
    spread_name: str = INTERVAL

    @classmethod
    def of(
        cls, speedups: Mapping[Setting, Speedup], lead: Callable[[Setting, Setting], Speedup | None], spread_name: str
    ) -> "Recommendation":
        """Recommend from the speedups of one temperature's drafts, one or more.

        Args:
            lead: the speedup of one draft over another, on batches that both decoded.
        """
        best, *others = sorted(speedups, key=lambda setting: speedups[setting].median, reverse=True)
        speedup = speedups[best]
        if speedup.is_gain:
            runner_up = next(iter(others), None)
            ahead = None if runner_up is None else lead(best, runner_up)
            return cls(best, best, speedup, runner_up, ahead, spread_name)
        loses = all(found.is_loss for found in speedups.values())
        return cls(best.baseline if loses else None, best, speedup, spread_name=spread_name)

    @property
    def is_gain(self) -> bool:
        """Whether a draft is recommended."""
        return self.setting == self.best

    @property
    def is_clear(self) -> bool:
        """Whether no other setting may be as fast."""
        return self.setting is not None and (self.runner_up is None or (self.lead is not None and self.lead.is_gain))

    @property
    def headline(self) -> str:
        """The expected speedup with its interval, in a few words."""
        if self.setting is None:
            return "undecided"
        return self._figure if self.is_gain else "plain"

    @property
    def _figure(self) -> str:
        spread = self.speedup.spread
        return str(self.speedup) if spread is None else f"{self.speedup} ({spread[0]:.2f} to {spread[1]:.2f})"

    @property
    def advice(self) -> str:
        """The recommendation in a sentence or two."""
        speedup, best = self.speedup, f'"{self.best.label}"'
        if self.is_gain:
            taken = f"{best}, {self._figure} plain decoding"
            rival = f'"{self.runner_up.label}"' if self.runner_up else ""
            if not self.is_clear:
                return f"a draw: take {taken}, or {rival}; the figures do not tell which."
            ahead = f", {percent(self.lead.median - 1, 1)} faster than the next, {rival}" if self.lead else ""
            return f"take {taken}{ahead}."
        if self.setting is not None:
            return f"decode plainly, no draft is faster here; the best, {best}, is at {speedup} plain decoding."
        if speedup.spread is None:
            few = f"too few batches to tell, {speedup.num_pairs} where it takes {FEWEST_OF[self.spread_name]}"
            return f"{few}; so far {best} is at {speedup} plain decoding."
        low, high = speedup.spread
        verdict = "no recommendation" if speedup.is_loss else "too close to tell"
        spread = f"a {self.spread_name}" if self.spread_name == INTERVAL else self.spread_name
        return f"{verdict}: {best} is at {speedup} plain decoding, with {spread} of {low:.2f} to {high:.2f}."

    def __str__(self) -> str:
        return f"{temperature_name(self.best.temperature)}: {self.advice}"
