"""Batch requests: parts of the loop that delegate to each row's own request."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..call.configuration import Options
from ..call.prompts import padded
from ..hf_compat import ACTIVE_ADAPTER, DISABLE_ADAPTERS, version_of
from ..interfaces import CachedModel, Sampler, Stopping
from ..models import MultimodalModel, is_recurrent, is_tested_multimodal, is_tested_universal
from ..sampling.samplers import ProcessedSampler
from ..types import Batch, Guide, Prefix, Tree, shared_prefixes
from .requests import Request

#: running requests by row
Running = dict[int, Request]
#: starts up to a number of waiting requests, and returns them by row
Take = Callable[[int], Running]


class Rows(Batch):
    """Rows of running requests, with access to waiting ones.

    Args:
        running: all running requests, those of other rows among them.
        rows: the first rows.
        max_length: the most tokens of any row, without padding; each request has its own maximum.
        pad: the padding token.
        take: starts waiting requests.
        leave: called before the last rows leave.
    """

    def __init__(
        self, running: Running, rows: Collection[int], max_length: int, pad: int, take: Take, leave: Callable[[Rows], None]
    ):
        requests = [running[row] for row in rows]
        ids, mask = padded([request.ids for request in requests], pad, left=True)
        super().__init__(ids.to(requests[0].inputs.input_ids.device), (mask == 0).sum(1).tolist(), max_length)
        self.max_position = max_length - 1
        self.rows, self.running, self.pad, self.take, self.leave = [*rows], running, pad, take, leave

    def guide_of(self, row: int) -> Guide | None:
        return self.running[row].guide if row in self.running else None

    @property
    def has_media(self) -> bool:
        return any(self.running[row].inputs.has_media for row in self.rows)

    @property
    def texts(self) -> list[list[int]]:
        """Texts whose cache other rows may share: equal ids stand for different images."""
        rows = zip(self.rows, self.history, strict=True)
        return [[] if self.running[row].inputs.has_media else list(text) for row, text in rows]

    @property
    def rooms(self) -> list[int]:
        rows = zip(self.rows, self.history, strict=True)
        return [max(0, self.running[row].max_length - len(text) - 1) for row, text in rows]

    refills = True  # requests end on their own, and others come at any time

    def newcomers(self, num_rows: int) -> Batch | None:
        requests = self.take(num_rows) if num_rows else {}
        if not requests:
            return None
        newcomers = Rows(self.running, requests, self.max_length, self.pad, self.take, self.leave)
        newcomers.shares_prefixes = self.shares_prefixes
        if not newcomers.has_media:
            newcomers.share_prefixes(self.texts)
        return newcomers

    def select(self, indices: list[int]) -> None:
        if not indices:
            self.leave(self)
        super().select(indices)

    def share_prefixes(self, texts: Sequence[list[int]]) -> None:
        """Share the cache of the one of `texts` with the longest common prefix, and record it in the requests."""
        if not self.shares_prefixes:
            return
        self.prefixes = shared_prefixes(texts, self.history)
        for row, prefix in zip(self.rows, self.prefixes, strict=True):
            self.running[row].num_cached = prefix.num_tokens


class Alike:
    """Group lanes with equal keys, for which one call gives all answers.

    Args:
        keys: one for each lane; a lane with `None` is alone.
    """

    def __init__(self, keys: list[Hashable | None]):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for lane, key in enumerate(keys):
            groups[("alone", lane) if key is None else key].append(lane)
        self.groups = list(groups.values())
        in_turn = [lane for lanes in self.groups for lane in lanes]
        self.back = None if in_turn == sorted(in_turn) else [in_turn.index(lane) for lane in range(len(in_turn))]

    def ask(self, answer: Callable[[list[int], Tensor], tuple[Tensor, ...]], values: Tensor) -> tuple[Tensor, ...]:
        """Compute answers for all lanes by `answer(lanes, values)`, one call for each group."""
        if len(self.groups) == 1:
            return answer(self.groups[0], values)
        of_groups = (answer(lanes, values[lanes]) for lanes in self.groups)
        answers = [torch.cat(parts) for parts in zip(*of_groups, strict=True)]
        return tuple(answers) if self.back is None else tuple(part[self.back] for part in answers)


class PerRequestSamplers(Sampler):
    """Each row's tokens are drawn by its own request's sampler, rows with the same settings together.

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
        for lane, request in enumerate(self.lanes):
            request.sampler.begin_round(request.own(batch, lane))
        self.processed_alike = Alike([request.sampler.processors.settings for request in self.lanes])
        self.drawn_alike = Alike([request.sampler.settings for request in self.lanes])

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        for lane, (request, new) in enumerate(zip(self.lanes, tokens, strict=True)):
            if not request.is_over:
                request.sampler.end_round(request.own(batch, lane, ends_round=True), [new])

    def target_scores(self, batch: Batch, logits: Tensor) -> Tensor:
        return self._processed(batch, logits, lambda sampler, own, some: sampler.target_scores(own, some))

    def level_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        return self._processed(batch, logits, lambda sampler, own, some: sampler.level_scores(own, some, ahead))

    def target_probs(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        probs, is_valid = self._drawn(scores, lambda sampler, some: sampler.target_probs(some))
        return probs, is_valid

    def probs(self, scores: Tensor) -> Tensor:
        return self._drawn(scores, lambda sampler, some: (sampler.probs(some),))[0]

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        return self._drawn(scores, lambda sampler, some: (sampler.confidences(some, ahead),))[0]

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        return self._drawn(scores, lambda sampler, some: (sampler.propose(some, ahead)[0],))[0], None

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        def draw(lanes: list[int], some: Tensor) -> tuple[Tensor]:
            own = None if tree is None else Tree(tree.parents[lanes], tree.depth)
            return (self.lanes[lanes[0]].sampler.categorical(some, ahead, own),)

        return self.drawn_alike.ask(draw, probs)[0]

    def _drawn(self, scores: Tensor, ask: Callable[[ProcessedSampler, Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return self.drawn_alike.ask(lambda lanes, some: ask(self.lanes[lanes[0]].sampler, some), scores)

    def _processed(self, batch: Batch, logits: Tensor, ask: Callable[[ProcessedSampler, Batch, Tensor], Tensor]) -> Tensor:
        def process(lanes: list[int], some: Tensor) -> tuple[Tensor]:
            first = self.lanes[lanes[0]]
            try:
                if not first.is_over or len(lanes) > 1:
                    return (ask(first.sampler, first.own(batch, lanes[0]), some),)
            except Exception as error:  # delivered by `Request.finish`
                for lane in lanes:
                    self.lanes[lane].error = error
            return (torch.zeros(*some.shape[:-1], self.vocab_size, device=batch.tokens.device),)  # not used

        return self.processed_alike.ask(process, logits)[0]


class PerRequestStopping(Stopping):
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
                del new[1:]  # a round has to add a token to each row; this one is dropped
                is_done = True
            done.append(is_done)
        return done


class Parked:
    """A copy of the target's cache of the last rows, such as the turns of a conversation so far.

    Args:
        batch: the finished rows; the target has read all but their newest tokens.
    """

    def __init__(self, batch: Rows, target: CachedModel, model: nn.Module):
        self.weights = weights_of(model)
        self.texts = batch.texts
        rows = batch.part(range(len(self.texts)))
        rows.prefixes = [Prefix(lane, max(0, len(text) - 1)) for lane, text in enumerate(self.texts)]
        self.target = target.fresh()
        self.target.share(target, rows)

    def give(self, batch: Rows, target: CachedModel, model: nn.Module) -> None:
        """Let unread rows of `batch` begin with the prefix that they share with a parked row."""
        if weights_of(model) == self.weights:
            batch.share_prefixes(self.texts)
            target.share(self.target, batch)


def weights_of(model: nn.Module) -> tuple:
    """A value that changes when a weight does: addresses, versions, and active PEFT adapters."""
    written = [(p.data_ptr(), version_of(p)) for p in model.parameters()]
    layers = [vars(module) for module in model.modules() if ACTIVE_ADAPTER in vars(module)]
    return written, [(str(layer[ACTIVE_ADAPTER]), layer.get(DISABLE_ADAPTERS)) for layer in layers]


def takes_media(model: PreTrainedModel, options: Options) -> bool:
    """Whether an engine for `model` runs such requests; known types alone, since a trial would need the model for itself."""
    source, is_known = options.source, is_tested_universal(model) and is_tested_multimodal(model)
    reads_target = source.reads_target or source.needs_ragged
    return is_known and not (reads_target or options.is_bitwise or is_recurrent(model))


def read_prompt(model: PreTrainedModel, target: CachedModel, batch: Batch, request: Request) -> None:
    """Let the only row of `batch`, which is unread, begin with all of its prompt but the last token."""
    reader, row = MultimodalModel(model, request.inputs), copy.copy(batch)
    reader.logits(row, ahead=0, num_last=1)
    row.prefixes = [Prefix(0, len(request.ids) - 1)]
    target.share(reader, row)
    reader.release()


def admit(model: PreTrainedModel, target: CachedModel, newcomers: Rows, lanes: list[int]) -> None:
    """`target.admit`, also of a request with an image."""
    if not newcomers.has_media:
        type(target).admit(target, newcomers, lanes)
        return
    fresh = target.fresh()
    read_prompt(model, fresh, newcomers, newcomers.running[newcomers.rows[0]])
    fresh.prefill(newcomers)
    target.num_forwards = fresh.num_forwards
    target.take(fresh, lanes)
