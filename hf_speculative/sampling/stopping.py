"""Evaluate stopping criteria on every accepted prefix.

Plain `generate` evaluates criteria after each token. A round adds several tokens to a row, so each of their prefixes is
evaluated, and the row is cut at the first hit.
"""

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from ..interfaces import Stopping
from ..types import NO_TOKEN, Batch, Few, NoDistribution, dense
from .copying import clone
from .stateful import StatefulProcessors


class CriteriaStopping(Stopping):
    """A `StoppingCriteriaList` for rows of their own length.

    Args:
        criteria: what `generate` prepared.
        batch_size: rows of the call, as many as a criterion saw in plain `generate`.
        keep_scores: criteria are given the scores of the tokens so far, as plain `generate` does under `output_scores`.
        only_copies: a single row, too, has copies of its own: other calls will use the same criteria.
        rows_go_on: as in plain `generate`, where no criterion brings an end token: there is nothing to fill up with then, and
            a row that met its stop writes on until all have.
    """

    def __init__(
        self, criteria, batch_size: int, keep_scores: bool = False, only_copies: bool = False, rows_go_on: bool = False
    ):
        self.batch_size = batch_size
        self.has_copies, self.shows_copies = batch_size > 1 or only_copies, not only_copies
        self.eos: set[int] = set()
        self.max_length: int | None = None
        self.stop_strings: list[StopStringCriteria] = []
        self.others: list = []
        for criterion in criteria:
            # By exact type: a subclass may do anything.
            if type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            elif type(criterion) is MaxLengthCriteria:
                self.max_length = min(self.max_length or criterion.max_length, criterion.max_length)
            elif type(criterion) is StopStringCriteria:
                self.stop_strings.append(criterion)
            else:
                self.others.append(criterion)
        self.may_differ_between_ranks = bool(self.others)
        self.copies: dict[int, list] = {}
        self.users = StatefulProcessors(self.others, "stopping_criteria") if self.others and self.has_copies else None
        fills_up = any(hasattr(criterion, "eos_token_id") for criterion in criteria)  # as plain `generate` asks
        self.goes_on = rows_go_on and batch_size > 1 and not fills_up
        self.met: dict[int, int] = {}  # where `goes_on`: columns of each row at its first stop
        self.scores: dict[int, list[Tensor]] | None = {row: [] for row in range(batch_size)} if keep_scores else None

    @property
    def rows_may_differ(self) -> bool:
        """Anything but the maximum length may end one row before another."""
        return not self.goes_on and bool(self.eos or self.stop_strings or self.others)

    def cut(self, batch: Batch, tokens: list[list[int]], scores: Tensor | Few) -> list[bool]:
        """Cut the new `tokens` of each row, in place, after the first that ends it; which rows are done.

        Raises:
            NoDistribution: a row that has not ended goes on by `NO_TOKEN`.
        """
        for row in self.copies.keys() - {0, *batch.rows}:  # done; the first row's are still shown
            del self.copies[row]
        if self.users is not None:
            self.users.hand_out(self.copies.values())
        string_hits = self._string_hits(batch, tokens)
        rows = enumerate(zip(batch.rows, tokens, strict=True))
        done = [self._cut_row(batch, b, row, new, scores, string_hits) for b, (row, new) in rows]
        if self.users is not None and self.shows_copies and 0 in batch.rows:
            self.users.show(self.copies[0])  # the user's own objects show the memory of the call's first row
        return self._together(batch) if self.goes_on else done

    def _together(self, batch: Batch) -> list[bool]:
        """Which rows are done, once every row of the call has met a stop."""
        if len(self.met) == self.batch_size:
            self.end = max(self.met.values())
        ends = [self.end, self.max_length]
        return [any(end is not None and length >= end for end in ends) for length in batch.host_lengths]

    def _cut_row(self, batch: Batch, b: int, row: int, new: list[int], scores: Tensor | Few, string_hits) -> bool:
        before = batch.host_lengths[b] - len(new)
        for i, token in enumerate(new):
            length = before + i + 1
            if token == NO_TOKEN:
                what = f"row {row}: there is no distribution to draw token {length - batch.prompt_width} from"
                raise NoDistribution(f"{what}: logits hold NaN or infinity, or no token is allowed, as in `generate`.")
            is_full = self.max_length is not None and length >= self.max_length
            # The user's own come first: plain generate asks them about every token, the last one included.
            stops = self._ask_others(batch, b, row, length, scores[b, i])
            if not (stops or is_full or token in self.eos or (b, i) in string_hits):
                continue
            self.met.setdefault(row, length)
            if is_full or not self.goes_on:
                del new[i + 1 :]
                return True
        return False

    def _string_hits(self, batch: Batch, tokens: list[list[int]]) -> set[tuple[int, int]]:
        """(row of the batch, new token) pairs at which a stop string is complete, for all prefixes in one call."""
        hits: set[tuple[int, int]] = set()
        for criterion in self.stop_strings:
            width = criterion.maximum_token_len
            # Ids past the vocabulary match no part of any string: they stand for "before the first token".
            nothing = torch.iinfo(torch.int32).max
            places = [(b, i) for b, new in enumerate(tokens) for i in range(len(new))]
            windows = torch.full((len(places), width), nothing, device=batch.tokens.device)
            for n, (b, i) in enumerate(places):
                end = batch.host_lengths[b] - len(tokens[b]) + i + 1
                window = batch.tokens[b, max(0, end - width) : end]
                windows[n, width - len(window) :] = window
            found = criterion(windows, None).tolist()
            hits.update(place for place, is_hit in zip(places, found, strict=True) if is_hit)
        return hits

    def _ask_others(self, batch: Batch, b: int, row: int, end: int, score: Tensor | Few) -> bool:
        """The user's own criteria, each row with copies of its own, once a token and in order, until the first hit.

        A row's copy sees a batch as large as plain `generate`'s, in which every row is that one. A criterion with a memory
        by row then finds the right entry.
        """
        if not self.others:
            return False
        if row not in self.copies:
            self.copies[row] = self.others if self.users is None else clone(self.users.copies)
        scores = None
        if self.scores is not None:
            kept = self.scores[row]
            if kept:  # the newest alone is as large as plain `generate`'s in memory
                kept[-1] = kept[-1][:1].clone().expand(self.batch_size, -1)
            kept.append(dense(score).repeat(self.batch_size, 1))
            scores = tuple(kept)
        ids = batch.tokens[b, None, :end].repeat(self.batch_size, 1)
        # All are asked, not just until the first True: each of them advances, as in plain generate.
        answers = [criterion(ids, scores) for criterion in self.copies[row]]
        return any(bool(torch.as_tensor(one).flatten().expand(self.batch_size)[row]) for one in answers)
