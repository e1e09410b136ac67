"""Manage the state of processors with a memory, by row: while drafts are tried, and after the last emitted token."""

import warnings
from collections.abc import Sequence

from ..types import Batch
from .copying import CannotCopy, check_alike, check_apart, clone
from .prefixes import Prefixes
from .stateful import StatefulProcessors


class Memory:
    """A row's copies of the processors with a memory, and what they remembered after each position of the target's pass.

    Attributes:
        committed: as after the last emitted token.
        current: as after the last position.
        after: snapshots, one a position; none if the set is never copied, which `rollback(num_calls)` takes back instead.
        is_reached: plain decoding may come to this position. Others, a processor is never shown.
    """

    is_reached = True

    def __init__(self, copies: list, memories: "Memories"):
        self.committed, self.memories = copies, memories
        self.num_calls = 0

    def begin_pass(self) -> None:
        self.is_reached = True
        self._take_back(self.num_calls)
        self.current = self.committed if self.memories.keeps_set else clone(self.committed)
        self.after: list[list] = []

    def end_position(self, is_draft: bool) -> None:
        self.num_calls += self.is_reached
        if is_draft or self.memories.keeps_set:
            return
        try:
            self.after.append(clone(self.current))
        except CannotCopy as error:  # what it has made in its first call; nothing is drafted before
            self.memories.give_up(error)

    def go_to(self, position: int) -> None:
        """The next position follows this one, which need not be the last."""
        if position != len(self.after) - 1:
            self.current = clone(self.after[position])

    def commit(self, num_tokens: int, path: Sequence[int]) -> None:
        """Accept the first `num_tokens` positions on a path of draft tokens."""
        if self.after:
            self.committed = self.after[path[num_tokens - 2] + 1 if num_tokens > 1 else 0]
            self.after = []
        else:
            self.committed = self.current
        self._take_back(self.num_calls - num_tokens)

    def _take_back(self, num_calls: int) -> None:
        if self.memories.can_rollback and num_calls:
            for processor in self.committed:
                processor.rollback(num_calls)
        self.num_calls = 0


class Memories:
    """The processors with a memory: each row has a set of copies, see `Memory`.

    Drafts and verification work on copies of a row's set; `commit` keeps the one after the last emitted token. If all of
    them can take calls back, by a `rollback(num_calls)` method, a row's set is never copied within a round. Processors that
    cannot be copied are called themselves, which serves one row and no drafts: see `lookahead_unsupported_reason`.

    Args:
        criteria: the user's own.

    Attributes:
        has_begun: they were called, and copied as they are since.
        lookahead_unsupported_reason: why drafts cannot be processed ahead of what is emitted; `None` if they can.

    Raises:
        CannotCopy: one of them cannot be copied, or shares what it holds with a criterion, and there are several rows.
    """

    has_begun = False

    def __init__(self, originals: list, batch_size: int, criteria: list):
        self.originals, self.batch_size = originals, batch_size
        self.can_rollback = all(hasattr(processor, "rollback") for processor in originals)
        self.users: StatefulProcessors | None = None
        self.lookahead_unsupported_reason: CannotCopy | None = None
        if originals and not (self.can_rollback and batch_size == 1):
            try:
                check_alike(originals, batch_size)
                check_apart(originals, criteria)
                self.users = StatefulProcessors(originals, "logits_processor")
            except CannotCopy as error:
                if batch_size > 1:
                    raise
                self.lookahead_unsupported_reason = error
        self.keeps_set = self.can_rollback or self.lookahead_unsupported_reason is not None
        self.of_row: dict[int, Memory] = {}
        self.is_drafting = False

    def give_up(self, error: CannotCopy) -> None:
        """From now on each row's set is called once a token, and nothing is drafted."""
        if self.lookahead_unsupported_reason is None:
            self.lookahead_unsupported_reason, self.keeps_set = error, True
            warnings.warn(f"nothing is drafted in this call: {error}", stacklevel=2)

    def begin_pass(self, batch: Batch, is_draft: bool) -> None:
        if is_draft and self.is_drafting:  # the draft goes on where it was
            return
        self.is_drafting = is_draft
        for row in self.of_row.keys() - {0, *batch.rows}:  # done; the first row's are still shown
            del self.of_row[row]
        if self.users is not None:
            self.users.hand_out(memory.committed for memory in self.of_row.values())
        for row in batch.rows:
            if row not in self.of_row:
                copies = self.originals if self.users is None else clone(self.users.copies)
                self.of_row[row] = Memory(copies, self)
            self.of_row[row].begin_pass()

    def begin_position(self, prefixes: Prefixes, position: int, is_draft: bool) -> None:
        """The rows' memories become those of what the next position follows."""
        for lane, (row, is_reached) in enumerate(zip(prefixes.batch.rows, prefixes.reached, strict=True)):
            self.of_row[row].is_reached = is_reached
            if position and not is_draft and prefixes.tree is not None and not self.keeps_set:
                self.of_row[row].go_to(prefixes.before(lane, position))

    def end_position(self, batch: Batch, is_draft: bool) -> None:
        for row in batch.rows:
            self.of_row[row].end_position(is_draft)

    def commit(self, batch: Batch, num_tokens: list[int]) -> None:
        for lane, (row, num) in enumerate(zip(batch.rows, num_tokens, strict=True)):
            path: Sequence[int] = range(num) if batch.host_path is None else batch.host_path[lane]
            self.of_row[row].commit(num, path)
        self.is_drafting, self.has_begun = False, True
        if self.users is not None and self.lookahead_unsupported_reason is None:
            self.users.show(self.of_row[0].committed)  # the user's own objects show the memory of the call's first row
