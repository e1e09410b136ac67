"""Decode batches under all settings in turn; compare and record each call at once."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .decoder import Decoder
from .journal import BadRow, Failure, Journal
from .settings import Setting


@dataclass
class Runner:
    """Decode batches under all settings, plain decoding among them, and record each call.

    Attributes:
        repeats: how often each batch is decoded under each setting.
        skip_failing: record a setting that cannot be measured as a failure, and leave it out. Else it raises in the warm-up,
            and makes its batch bad rows later.
        say: is told what comes next.
        count: is called after each call.
    """

    decoder: Decoder
    settings: list[Setting]
    journal: Journal
    repeats: int = 1
    skip_failing: bool = False
    say: Callable[[str], None] = lambda what: None
    count: Callable[[], Any] = lambda: None

    def missing(self, batch: int, indices: list[int]) -> list[tuple[Setting, int]]:
        """The calls of a batch to do: settings and call numbers. None of a batch with a bad row."""
        if not indices or not self.journal.bad_rows.keys().isdisjoint(indices):
            return []
        numbers = range(batch * self.repeats, (batch + 1) * self.repeats)
        return [
            (setting, number)
            for number in numbers
            # rotated, so that no setting always follows the same other one
            for setting in self._turned(number)
            if (setting.name, number) not in self.journal.calls and setting.name not in self.journal.failures
        ]

    def _turned(self, number: int) -> list[Setting]:
        first = number % len(self.settings)
        return self.settings[first:] + self.settings[:first]

    def check(self) -> None:
        """Refuse what cannot work, before the first forward.

        Raises:
            ValueError, TypeError: as `generate`; not where failing settings are skipped.
        """
        for setting in self.settings:
            try:
                self.decoder.check(setting)
            except ValueError as error:
                self._skip(setting, error)

    def warm_up(self, setting: Setting, batches: list[list[list[int]]]) -> None:
        """Warm up a setting; one that cannot work raises here. If the first batch fails, others are tried.

        Args:
            batches: one or more. The last one may be smaller, and is warmed up as well: costs and compiled passes depend on
                the size.
        """
        self.say(f"warming up: {setting.name}")
        first, *others = batches
        try:
            try:
                self.decoder.warm_up(setting, first)
                others = [batch for batch in others[-1:] if len(batch) != len(first)]
            except (RuntimeError, IndexError):
                if not others:
                    raise
            for batch in others:
                self.decoder.warm_up(setting, batch)
        except (RuntimeError, ValueError, IndexError) as error:
            self._skip(setting, error)

    def run(self, batch: int, indices: list[int], ids: list[list[int]]) -> None:
        """Decode a batch under every setting, as often as it is repeated, and note where texts differ from plain decoding's."""
        for setting, number in self.missing(batch, indices):
            if setting.name in self.journal.failures:
                continue
            self.say(setting.name)
            try:
                call = self.decoder.decode(setting, number, indices, ids)
            except (ValueError, RuntimeError, IndexError) as error:  # of this batch: the setting was warmed up
                if self.skip_failing and not setting.is_plain:
                    self._skip(setting, error)
                    continue
                for index in indices:
                    self.journal.add(BadRow(index, f"{setting.name}: {_told(error)}"))
                break
            self.journal.add(call)
            self.count()
        for number in range(batch * self.repeats, (batch + 1) * self.repeats):
            self._compare(number, ids)

    def _compare(self, number: int, prompts: list[list[int]]) -> None:
        """Record each text that should equal plain decoding's and does not, once."""
        for setting in self.settings:
            call, plain = (self.journal.calls.get((s.name, number)) for s in (setting, setting.baseline))
            if call is None or plain is None or not setting.is_ours or not setting.is_exact:
                continue
            for row, expected, prompt in zip(call.rows, plain.rows, prompts, strict=True):
                if row.new_ids != expected.new_ids and (setting.name, row.index) not in self.journal.differences:
                    self.journal.add(self.decoder.difference(setting, prompt, expected, row))

    def _skip(self, setting: Setting, error: Exception) -> None:
        if setting.is_plain or not self.skip_failing:
            raise error
        self.journal.add(Failure(setting.name, _told(error)))


def _told(error: Exception) -> str:
    return out_of_memory(error) or f"{type(error).__name__}: {error}"


def out_of_memory(error: Exception) -> str | None:
    """Explain an out-of-memory error and what needs less; `None` for another error."""
    found = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    if found is None:
        return None
    return f"out of memory, at an allocation of {found[1]}: decode fewer prompts together, fewer new tokens, or in bfloat16"
