"""Many requests as one batch: each part of the loop asks, for each row, that request's own part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..interfaces import Sampler, Schedule, Stopping
from ..types import Batch, Costs, Round, Tree
from .requests import Request

#: by the row of the batch that is theirs
Running = dict[int, Request]


class Rows(Batch):
    """The rows that run, and a way to those that wait.

    Args:
        requests: the first rows.
        max_length: tokens that a row can have, padding left out.
        pad: in the place of no token.
        take: up to so many requests that wait, by their row.
    """

    def __init__(self, requests: Running, max_length: int, pad: int, take: Callable[[int], Running]):
        width = max(len(request.ids) for request in requests.values())
        padding = [width - len(request.ids) for request in requests.values()]
        rows = [[pad] * num + request.ids for num, request in zip(padding, requests.values(), strict=True)]
        device = next(iter(requests.values())).inputs.input_ids.device
        super().__init__(torch.tensor(rows, device=device), padding, max_length)
        self.max_position = max_length - 1
        self.rows, self.pad, self.take = list(requests), pad, take

    def newcomers(self, num_rows: int) -> Batch | None:
        requests = self.take(num_rows) if num_rows else {}
        return Rows(requests, self.max_length, self.pad, self.take) if requests else None


class OwnSamplers(Sampler):
    """Each row's tokens are drawn by its own request's sampler.

    Whatever a request's processors raise ends that request alone.
    """

    one_hot_proposals = True
    keeps_draft_probs = False
    takes_trees = True

    def __init__(self, running: Running, vocab_size: int):
        self.running, self.vocab_size = running, vocab_size
        self.lanes: list[Request] = []

    @property
    def drafts_trees(self) -> bool:  # type: ignore[override]
        return all(request.sampler.drafts_trees for request in self.lanes)

    def begin_round(self, batch: Batch) -> None:
        self.lanes = [self.running[row] for row in batch.rows]
        for request, own in self._own(batch):
            request.sampler.begin_round(own)

    def end_round(self, batch: Batch, tokens: list[list[int]]) -> None:
        for (request, own), new in zip(self._own(batch), tokens, strict=True):
            if not request.is_over:
                request.sampler.end_round(own, [new])

    def target_scores(self, batch: Batch, logits: Tensor) -> Tensor:
        return self._processed(batch, logits, lambda sampler, own, one: sampler.target_scores(own, one))

    def draft_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        return self._processed(batch, logits, lambda sampler, own, one: sampler.draft_scores(own, one, ahead))

    def level_scores(self, batch: Batch, logits: Tensor, first: int) -> Tensor:
        return self._processed(batch, logits, lambda sampler, own, one: sampler.level_scores(own, one, first))

    def target_probs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        probs, is_valid = zip(*self._each(lambda sampler, one: sampler.target_probs(one), scores), strict=True)
        return torch.cat(probs), torch.cat(is_valid)

    def probs(self, scores: Tensor) -> Tensor:
        return torch.cat(list(self._each(lambda sampler, one: sampler.probs(one), scores)))

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        return torch.cat(list(self._each(lambda sampler, one: sampler.confidences(one, ahead), scores)))

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        return torch.cat([tokens for tokens, _ in self._each(lambda s, one: s.propose(one, ahead), scores)]), None

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        trees = [None if tree is None else Tree(parents[None], tree.depth) for parents in _rows_of(tree, len(probs))]
        drawn = [
            request.sampler.categorical(probs[lane : lane + 1], ahead, trees[lane])
            for lane, request in enumerate(self.lanes)
        ]
        return torch.cat(drawn)

    def bernoulli(self, probability: Tensor) -> Tensor:
        raise TypeError("the requests of a server flip no coins: they need the rule SampledVerification")

    def _own(self, batch: Batch) -> Iterator[tuple[Request, Batch]]:
        for lane, request in enumerate(self.lanes):
            yield request, request.own(batch, lane)

    def _each(self, ask: Callable[[Any, Tensor], Any], scores: Tensor) -> Iterator[Any]:
        for lane, request in enumerate(self.lanes):
            yield ask(request.sampler, scores[lane : lane + 1])

    def _processed(self, batch: Batch, logits: Tensor, ask: Callable[[Any, Batch, Tensor], Tensor]) -> Tensor:
        scores = []
        for lane, (request, own) in enumerate(self._own(batch)):
            one = logits[lane : lane + 1]
            try:
                if not request.is_over:
                    one = ask(request.sampler, own, one)
            except Exception as error:  # delivered by `Request.finish`
                request.error = error
            scores.append(self._as_wide(one, batch))
        return torch.cat(scores)

    def _as_wide(self, scores: Tensor, batch: Batch) -> Tensor:
        """Those of a request that is over: it matters no more what they say."""
        if scores.dtype == torch.float32 and scores.shape[-1] == self.vocab_size:
            return scores
        return torch.zeros(*scores.shape[:-1], self.vocab_size, device=batch.tokens.device)


def _rows_of(tree: Tree | None, num_rows: int):
    return [None] * num_rows if tree is None else tree.parents


class OwnStopping(Stopping):
    """Each row ends by its own request's criteria; one that is over ends at once."""

    def __init__(self, running: Running):
        self.running = running

    def cut(self, batch: Batch, tokens: list[list[int]], scores: Tensor) -> list[bool]:
        done = []
        for lane, (row, new) in enumerate(zip(batch.rows, tokens, strict=True)):
            request, is_done = self.running[row], True
            try:
                if not request.is_over:
                    [is_done] = request.stopping.cut(request.own(batch, lane), [new], scores[lane : lane + 1])
            except Exception as error:  # delivered by `Request.finish`
                request.error = error
            if request.is_over:
                del new[1:]  # a round brings each row a token; nobody gets this one
                is_done = True
            done.append(is_done)
        return done


class OwnRoom(Schedule):
    """`schedule`, with each row's room up to its own maximum length."""

    def __init__(self, schedule: Schedule, running: Running):
        self.schedule, self.running = schedule, running

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        self.schedule.begin(batch, costs)

    def plan(self, batch: Batch) -> list[int]:
        lengths = zip(batch.rows, batch.host_lengths, batch.host_padding, strict=True)
        rooms = [max(0, self.running[row].max_length - (length - pad) - 1) for row, length, pad in lengths]
        return [min(num, room) for num, room in zip(self.schedule.plan(batch), rooms, strict=True)]

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        return self.schedule.num_nodes(batch, chances)

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        return self.schedule.should_stop(scores, tokens)

    @property
    def may_stop(self) -> bool:
        return self.schedule.may_stop

    def update(self, round: Round) -> None:
        self.schedule.update(round)
