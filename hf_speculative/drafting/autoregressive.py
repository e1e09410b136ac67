"""Base classes of drafters that guess one token at a time."""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..interfaces import MANY, CachedModel, Drafter, Sampler, Schedule
from ..models import RaggedCache, by_length, exchanged
from ..types import Batch, Draft, uploaded
from .proposers import ForcedChain


class AutoregressiveDrafter(Drafter):
    """A drafter that guesses one token at a time, each drawn from its own processed distribution. A subclass needs `step`."""

    def step(self, batch: Batch, ahead: int) -> Tensor:
        """Logits `(batch, any vocab)` of the token after the first `ahead` draft tokens, which are in `batch`.

        A round calls it for `ahead` = 0, 1, 2, ... without a gap.
        """
        raise NotImplementedError

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        """All steps of a round, as `CachedModel.greedy_chain`, where that is faster."""
        return None

    #: `level` is there
    scores_levels: bool = False

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        """Logits `(batch, width, any vocab)` after the last `width` of `num_nodes` nodes, which are in `batch` as a tree.

        Those are its deepest level; the levels before, and the first step, were asked for in this round.
        """
        raise NotImplementedError

    def chances(self, batch: Batch, ahead: int) -> Tensor | None:
        """`(batch,)` estimated probabilities that the target keeps the next token, which is not drawn yet; `None`: unknown."""
        return None

    #: a step may follow tokens that came without one
    skips_steps: bool = False

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        """Limit `num_tokens` to what this drafter can propose."""
        return num_tokens

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        num_tokens = self.limit(batch, num_tokens)
        width = max(num_tokens)
        if width == 0:
            return Draft.empty(batch)
        limits = uploaded(num_tokens, batch.lengths.device)
        if sampler.proposes_argmax and not schedule.may_stop:
            chain = self.greedy_chain(batch, width, sampler.vocab_size)
            if chain is not None:
                allowed = sampler.num_allowed(chain)
                return Draft(chain, None, limits if allowed is None else torch.minimum(limits, allowed))
        tokens: list[Tensor] = []
        probs = []
        forced = ForcedChain(batch, sampler.vocab_size) if self.skips_steps else None
        for ahead in range(width):
            certain = None if forced is None else forced.scores_after(tokens)
            logits = self.step(batch, ahead) if certain is None else None
            chances = self.chances(batch, ahead) if schedule.may_stop else None
            stop = None if chances is None else schedule.should_stop_before(chances)
            if stop is not None:
                limits = torch.where(stop, limits.clamp(max=ahead), limits)
                if bool((limits <= ahead).all()):
                    break
            scores = certain if logits is None else sampler.draft_scores(batch, logits, ahead)
            token, distribution = sampler.propose(scores, ahead)
            batch.put(token[:, None], ahead)
            tokens.append(token)
            probs.append(distribution)
            stop = schedule.should_stop(scores, token)
            if stop is not None:
                limits = torch.where(stop, limits.clamp(max=ahead + 1), limits)
                if bool((limits <= ahead + 1).all()):
                    break
        if not tokens:
            return Draft.empty(batch)
        distributions = None if probs[0] is None else torch.stack(probs, 1)
        return as_proposed(torch.stack(tokens, 1), distributions, limits, sampler)


class HeadDrafter(AutoregressiveDrafter):
    """A drafter that reads the target's states into a cache of its own.

    Attributes:
        compiled: its passes, if they are compiled or captured.
        reads_length: positions in a pass depend on its longest text.
        num_layers: of that cache.
        most_tokens: the longest draft.
        num_ahead: the longest of this round.
        seen: slots of each row that hold what the target's states gave; `unseen` where there are none.
    """

    num_layers: int
    most_tokens: int = MANY
    unseen: Any = 0
    compiled: Any = None
    reads_length: bool = False
    device: torch.device

    def follow(self, target: CachedModel) -> None:
        self.target = target

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        self.cache, self.seen = self.new_cache(), [self.unseen for _ in batch.rows]

    def new_cache(self) -> RaggedCache:
        """One in which nothing is read."""
        return RaggedCache([None] * self.num_layers)

    def attend_to(self, batch: Batch, end: int, limit: int) -> None:
        """The next pass attends to slots `[0, end)` of the cache, `limit` being as far as the call can get."""
        self.cache.reserve(len(batch.rows), end, limit)
        self.cache.end = end

    def limit(self, batch: Batch, num_tokens: list[int]) -> list[int]:
        num_tokens = [min(n, self.most_tokens) for n in num_tokens]
        self.num_ahead = max(num_tokens)
        # Prompts of one token, just admitted: no state to start from.
        return num_tokens if any(len(history) > 1 for history in batch.history) else [0] * len(num_tokens)

    def read_apart(self, batch: Batch) -> None:
        """Read much longer prompts in separate passes, before the first pass of a round."""
        if self.unseen not in self.seen or self.reads_length:
            return
        lengths = [len(text) if seen == self.unseen else 1 for text, seen in zip(batch.history, self.seen, strict=True)]
        for group in by_length(lengths, self.device):
            if not (lanes := [lane for lane in group if lengths[lane] > 2]):
                continue
            rows = batch.part(lanes)
            rows.reserve(max(rows.host_lengths) + self.num_ahead + 1)
            apart = copy.copy(self)
            apart.cache, apart.seen, apart.compiled = self.new_cache(), [self.unseen for _ in lanes], None
            apart.target = cast(Any, SimpleNamespace(hidden_states=partial(self.target.hidden_states, lanes=lanes)))
            apart.read(rows)
            self.num_forwards, end = apart.num_forwards, max(map(len, rows.history)) - 1
            self.cache.reserve(len(batch.rows), end, batch.max_length)
            self.cache.take(apart.cache, list(range(len(lanes))), lanes, end)
            for lane, seen in zip(lanes, apart.seen, strict=True):
                self.seen[lane] = seen

    def read(self, batch: Batch) -> None:
        """Read the texts of `batch`, and leave their last slots to the next pass."""
        self.step(batch, 0)
        self.seen = [seen - 1 for seen in self.seen]

    def select(self, indices: list[int]) -> None:
        self.seen = [self.seen[i] for i in indices]
        self.cache.select(indices)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        for lane in lanes:
            self.seen[lane] = self.unseen


def as_proposed(tokens: Tensor, distributions: Tensor | None, num_tokens: Tensor, sampler: Sampler) -> Draft:
    """The chain of `tokens (batch, k)` that the `sampler` proposed, beside their `distributions (batch, k, vocab)`."""
    if sampler.proposes_likeliest:
        return Draft(tokens, None, num_tokens, likeliest_of=distributions)
    return Draft(tokens, distributions, num_tokens)


def raw_embedding(embedding: nn.Module) -> nn.Module:
    """A target's embeddings as heads read them: the weights alone, without the norm or the scale that some targets add."""
    if hasattr(embedding, "embed_norm"):
        embedding = exchanged(embedding, {"embed_norm": nn.Identity()})
    if hasattr(embedding, "embed_scale"):
        scale, embedding = torch.as_tensor(embedding.embed_scale), exchanged(embedding, {})
        embedding._buffers = dict(embedding._buffers)  # the copy shares those of the original
        embedding.embed_scale = torch.ones_like(scale)
    return embedding
