"""Proposers, which guess how a text goes on without a draft model; a `TreeDrafter` grows trees of their guesses.

The tokens that a call's grammar forces are guesses without a pass, too, accepted by any target under it.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..types import Batch, Guide, uploaded
from .suffix.growing import GrowingText
from .suffix.store import SuffixStore

#: what a guess rests on: guesses of one kind are right equally often, as far as is known
Kind: TypeAlias = Any
#: a kind of guess, the token, and the place after it
Child = tuple[Kind, int, Any]

#: successors kept for each token, as in the paper, and their prior acceptance rates
NUM_SUCCESSORS = 8
RANK_PRIORS = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)
#: the longest run of tokens that is compared, as in vLLM
DEFAULT_MAX_DEPTH = 24
#: tokens of a copy at most, as many as a tree has nodes
MOST_COPIED = 64
#: prior acceptance rates of copies by length of the match: 1, 2 to 3, 4 to 7, 8 to 15, more
MATCH_PRIORS = (0.2, 0.35, 0.55, 0.7, 0.8)
#: the prior rate at which a target writes a forced text with its tokenizer's own tokens
PRIOR = 0.9


class Proposer:
    """A way to guess what comes next. A place is where it stands in its own knowledge, `None` where it knows nothing.

    Attributes:
        num_successors: how many of the target's likeliest tokens it wants to see after each pass.
    """

    num_successors: int = 0

    def begin(self, batch: Batch, vocab_size: int) -> None:
        """Called once a call, before its first round."""

    def place_after(self, lane: int, text: list[int]) -> Any:
        """Read a row's text, or what has come to it, and give the place at its end."""
        raise NotImplementedError

    def children(self, place) -> Sequence[Child]:
        """What may follow a place."""
        raise NotImplementedError

    def follow(self, place, token: int) -> Any:
        """The place after a token that another proposer has guessed."""
        return None

    def prior(self, kind: Kind) -> float:
        """How often a guess of this kind is right, as long as none was seen."""
        raise NotImplementedError

    def observe(self, tokens: list[int], successors: np.ndarray) -> None:
        """The target was shown each of `tokens (n,)`, and found `successors (n, num_successors)` likeliest after it."""

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Other rows begin at `lanes`."""

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        """A row is done."""


class Recycling(Proposer):
    """Token recycling: what the target itself found likeliest after the same token, wherever it last stood.

    Luo et al. 2024 (arXiv 2408.08696): a pass over a tree computes distributions at all its nodes, of which plain decoding
    throws all but one away. 32 bytes for each token of the vocabulary, kept from call to call.
    """

    num_successors = NUM_SUCCESSORS

    def __init__(self):
        #: `(vocab, num_successors)`, -1 where nothing is known
        self.table = np.empty((0, self.num_successors), dtype=np.int32)

    def begin(self, batch: Batch, vocab_size: int) -> None:
        if len(self.table) != vocab_size:
            self.table = np.full((vocab_size, self.num_successors), -1, dtype=np.int32)

    def place_after(self, lane: int, text: list[int]) -> int | None:
        return self.follow(None, text[-1]) if text else None

    def follow(self, place, token: int) -> int | None:
        return token if token < len(self.table) else None

    def children(self, place: int) -> list[Child]:
        return [(rank, token, token) for rank, token in enumerate(self.table[place].tolist()) if token >= 0]

    def prior(self, kind: Kind) -> float:
        return RANK_PRIORS[kind]

    def observe(self, tokens: list[int], successors: np.ndarray) -> None:
        read = np.asarray(tokens, dtype=np.int64)  # of none, too
        has_logit = read < len(self.table)  # an image's token may have none
        self.table[read[has_logit], : successors.shape[1]] = successors[has_logit]


class Match(NamedTuple):
    """A place after tokens that stood elsewhere before.

    Attributes:
        continuations: what followed the match wherever it stood, the latest last.
        voters: those of them that agree with the draft up to here.
        length: tokens of a row's text that match.
        level: draft tokens up to here.
        share: of the cases in which the end of the row's text matched, those in which the draft up to here followed.
    """

    continuations: Sequence[Sequence[int]]
    voters: Sequence[int]
    length: int
    level: int = 0
    share: float = 1.0


class SuffixProposer(Proposer):
    """What followed the end of a row's text wherever it stood before (Oliaro et al. 2024, arXiv 2411.04975).

    Args:
        max_depth: the longest run of tokens that is compared: a match and the token after it.
        max_factor: draft tokens for each token of the match; a short match says little.
        min_share: a draft goes on as long as all of it followed the match in at least this share of cases.
    """

    def __init__(self, max_depth: int = DEFAULT_MAX_DEPTH, max_factor: float = inf, min_share: float = 0.0):
        self.max_depth, self.max_factor, self.min_share = max_depth, max_factor, min_share

    def children(self, place: Match) -> list[Child]:
        continuations, voters, length, level, share = place
        if level + 1 > length * self.max_factor:
            return []
        following: dict[int, list[int]] = {}
        for i in voters:
            if level < len(continuations[i]):
                following.setdefault(continuations[i][level], []).append(i)
        total = sum(map(len, following.values()))
        long, often = min((length + level).bit_length(), len(MATCH_PRIORS)), min(total.bit_length(), 3)
        children: list[Child] = []
        for token, agree in sorted(following.items(), key=lambda pair: (len(pair[1]), pair[1][-1]), reverse=True):
            if share * len(agree) >= self.min_share * total:
                after = place._replace(voters=agree, level=level + 1, share=share * len(agree) / total)
                children.append(((long, often, 4 * len(agree) // total), token, after))
        return children

    @staticmethod
    def match(length: int, continuations: Sequence[Sequence[int]]) -> Match | None:
        """The place after a match of `length` tokens."""
        return Match(continuations, range(len(continuations)), length) if length else None

    def prior(self, kind: Kind) -> float:
        long, _, quarters = kind
        return MATCH_PRIORS[long - 1] * (quarters + 0.5) / 4.5


class PromptSuffix(SuffixProposer):
    """Copies from the row's own text, prompt and output."""

    def begin(self, batch: Batch, vocab_size: int) -> None:
        self.rows = [GrowingText() for _ in batch.rows]

    def place_after(self, lane: int, text: list[int]) -> Match | None:
        row = self.rows[lane]
        row.extend(text[len(row.tokens) :])
        return self.match(*row.longest_match(self.max_depth - 1, MOST_COPIED))

    def select(self, indices: list[int]) -> None:
        rows, self.rows = self.rows, []
        for i in indices:
            self.rows.append(rows[i].copy() if rows[i] in self.rows else rows[i])

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        for lane in lanes:
            self.rows[lane] = GrowingText()


class CorpusSuffix(SuffixProposer):
    """Copies from the texts of a store.

    Args:
        learns: rows that are done enter the store. The others as for `SuffixProposer`.
    """

    def __init__(self, store: SuffixStore, learns: bool = True, **settings):
        super().__init__(**settings)
        self.store, self.learns = store, learns

    def begin(self, batch: Batch, vocab_size: int) -> None:
        self.store.check_vocabulary(vocab_size)

    def place_after(self, lane: int, text: list[int]) -> Match | None:
        return self.match(*self.store.longest_match(text[1 - self.max_depth :], self.max_depth))

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        if self.learns:
            self.store.add(answer, prompt)


class Path(NamedTuple):
    """A place in a grammar: after a row's text and then `tokens`; `forced` are known to follow."""

    guide: Guide
    text: list[int]
    tokens: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()


class ForcedTokens(Proposer):
    """What a grammar forces. It also says what none of the proposers beside it may guess."""

    def begin(self, batch: Batch, vocab_size: int) -> None:
        self.guides: list[Guide | None] = []

    def begin_round(self, batch: Batch) -> None:
        self.guides = [batch.guide_of(row) for row in batch.rows]

    def place_after(self, lane: int, text: list[int]) -> Path | None:
        guide = self.guides[lane] if self.guides else None
        return None if guide is None else Path(guide, text)

    def children(self, place: Path) -> list[Child]:
        forced = place.forced or place.guide.forced(place.text, place.tokens)
        if not forced:
            return []
        token, *rest = forced
        return [(1, token, place._replace(tokens=(*place.tokens, token), forced=tuple(rest)))]

    def follow(self, place: Path, token: int) -> Path:
        return place._replace(tokens=(*place.tokens, token), forced=())

    def allows(self, place: Path | None, token: int) -> bool:
        """Whether the target may choose this token after a place, whoever guesses it."""
        return place is None or place.guide.allows(place.text, place.tokens, token)

    def prior(self, kind: Kind) -> float:
        return PRIOR


class ForcedChain:
    """What the grammars of all rows force next within a chain, for which a draft model needs no step."""

    def __init__(self, batch: Batch, vocab_size: int):
        guides = [guide for guide in map(batch.guide_of, batch.rows) if guide is not None]
        self.rows = list(zip(guides, batch.history, strict=True)) if len(guides) == len(batch.rows) else []
        self.vocab_size, self.device = vocab_size, batch.tokens.device

    def scores_after(self, chain: Sequence[Tensor]) -> Tensor | None:
        """Scores `(batch, vocab)` that leave each row its forced token after the `chain` of `(batch,)` tokens.

        `None`: a row may choose.
        """
        if not self.rows:
            return None
        paths = torch.stack([*chain], 1).tolist() if chain else [[]] * len(self.rows)
        forced = []
        for (guide, text), path in zip(self.rows, paths, strict=True):
            if not (run := guide.forced(text, tuple(path))):
                return None
            forced.append(run[:1])
        scores = torch.full((len(forced), self.vocab_size), -torch.inf, device=self.device)
        return scores.scatter_(1, uploaded(forced, self.device, torch.long), 0.0)
