"""Records of rounds, their costs, and copies between host and device without waiting.

A round reads from the device once, in `Batch.append`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import Tensor
from torch.nn import functional

#: a probability of 1 where it is read from the device as a whole number
UNIT = 2**24


def in_units(values: Tensor) -> Tensor:
    """Probabilities among whole numbers: all that a round reads is int64, and read at once."""
    return (values.float().nan_to_num(0) * UNIT).long()


def uploaded(values: Sequence, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host as a tensor on `device`.

    `torch.tensor(values, device=...)` waits until a GPU has done all work it was given before. This does not: CUDA takes the
    values into a buffer of its own at once. Other devices may read them later, when they may be gone.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=device.type == "cuda")


def read_later(tensor: Tensor) -> Tensor:
    """A copy of `tensor` on the host, which is complete once anything else has been read from its device."""
    return tensor.to("cpu", non_blocking=tensor.device.type == "cuda")


class NoDistribution(RuntimeError):
    """The target's logits are no distribution to draw the next token from; plain `generate` raises a `RuntimeError` as well."""


@dataclass(frozen=True)
class Verdict:
    """What a rule decides about one draft.

    Attributes:
        num_accepted: `(batch,)` int64, how many draft tokens each row keeps.
        next_token: `(batch,)` int64, the token the target adds after them: bonus or correction.
        acceptance_prob: `(batch, k)` float, the chance, given the draft, that each draft token and all before it are kept: an
            estimate with less noise than the coins that were flipped. `None`: what was kept stands for it, as 0 and 1.
        path: `(batch, depth)` int64, which tokens of a tree each row keeps, in order; what stands beyond its `num_accepted` is
            filler. `None`: the first ones.
        chances: `(batch, 2)` float, summed over the positions of a chain that were reached: with what chance a token drawn from
            the draft's distribution is kept, and with what chance the likeliest. `None`: not known.
    """

    num_accepted: Tensor
    next_token: Tensor
    acceptance_prob: Tensor | None = None
    path: Tensor | None = None
    chances: Tensor | None = None


@dataclass
class Round:
    """What one round did, for code that consumes rounds. Lists have one entry per running row.

    `Batch.append` begins it with what it reads from the device: `tokens` as they are before a stop, `NO_TOKEN` from the first
    on that came from no distribution.

    Attributes:
        rows: which row of the call each entry belongs to.
        tokens: the new tokens of each row, already cut at the first stop.
        num_drafted: draft tokens proposed.
        num_from_draft: how many of `tokens` came from the draft.
        done: rows that end with this round.
        logits: `(batch, k + 1, vocab)` the target's logits; position i is the one that token i was chosen at.
        processed: the same after every logits processor; `scores` has them for the whole vocabulary.
        acceptance_prob: for each draft token proposed, `Verdict.acceptance_prob`; of a tree, those on the path that was kept.
        chances: `Verdict.chances`, of all rows together.
    """

    rows: list[int]
    tokens: list[list[int]]
    num_drafted: list[int]
    num_from_draft: list[int]
    done: list[bool]
    logits: Tensor = field(default=None, repr=False)
    processed: Tensor | Few = field(default=None, repr=False)
    acceptance_prob: list[list[float]] = field(default_factory=list)
    chances: tuple[float, float] | None = None

    @property
    def scores(self) -> Tensor:
        """The logits after every logits processor, `(batch, k + 1, vocab)`, written out anew where few of them are kept."""
        return dense(self.processed)

    @property
    def num_accepted(self) -> list[int]:
        """Draft tokens accepted: the new tokens but one, for each round brings one token of its own.

        Where a stop cuts inside the accepted tokens, the last one kept counts as the round's own. So accepted tokens plus
        rounds is always the number of new tokens.
        """
        return [len(tokens) - 1 for tokens in self.tokens]

    @property
    def is_cut(self) -> list[bool]:
        """Rows that a stop ended inside their accepted draft tokens, before the target's own."""
        return [n == len(tokens) for n, tokens in zip(self.num_from_draft, self.tokens, strict=True)]


@dataclass(frozen=True)
class Costs:
    """What rounds of one batch size take, in plain steps, 1 without a draft:
    `1 + start + draft * passes + verify * nodes + level * levels + uneven[nodes - 1]`.

    Attributes:
        draft: of a pass of the draft, for a token of a chain or a level of a tree.
        verify: of verifying one more token, or node of a tree, in each row.
        start: of any draft at all.
        level: of a level of a tree that grows level by level, beside its pass.
        uneven: what rounds of 1, 2, ... nodes take beyond that line, negative if less. The last one counts for all larger ones.

    Raises:
        ValueError: one of the first four is negative or not finite, or nodes cost less than none.
    """

    draft: float = 0.0
    verify: float = 0.0
    start: float = 0.0
    level: float = 0.0
    uneven: tuple[float, ...] = ()

    def __post_init__(self):
        for name in ("draft", "verify", "start", "level"):
            if not 0 <= (cost := getattr(self, name)) < inf:
                raise ValueError(f"`{name}={cost}` is no cost: give plain steps, 0 or more.")
        for nodes, more in enumerate(self.uneven, 1):
            if not -1e-9 <= self.start + self.verify * nodes + more < inf:  # rounding
                raise ValueError(f"`uneven[{nodes - 1}]={more}` is no cost: {nodes} nodes have to take 0 steps or more.")

    def steps(self, passes: int, nodes: int, levels: int = 0) -> float:
        """The cost, in plain steps, of a round with `passes` draft passes that verifies `nodes` nodes of `levels` levels."""
        if not (passes or nodes):
            return 1.0
        uneven = self.uneven[min(nodes, len(self.uneven)) - 1] if nodes and self.uneven else 0.0
        return 1 + self.start + self.draft * passes + self.verify * nodes + self.level * levels + uneven


@dataclass(frozen=True)
class Few:
    """Numbers of few tokens, in the place of a tensor over the vocabulary.

    Attributes:
        values: `(..., n + 1)`, of `ids`, and a last one that stands for all other tokens: -inf as a score, 0 as a probability.
        ids: `(n,)` int64, in order.
        vocab_size: of the whole.
    """

    values: Tensor
    ids: Tensor
    vocab_size: int

    def __getitem__(self, index) -> Few:
        """Some of the positions."""
        return replace(self, values=self.values[index])

    def places(self, tokens: Tensor) -> Tensor:
        """Where the values of `tokens` are."""
        places = torch.searchsorted(self.ids, tokens.contiguous())
        is_among = functional.pad(self.ids, (0, 1), value=-1)[places] == tokens
        return places.where(is_among, len(self.ids))


def dense(found: Tensor | Few) -> Tensor:
    """The same over the whole vocabulary: `(..., vocab)`."""
    if isinstance(found, Tensor):
        return found
    values = found.values
    whole = values[..., -1:].expand(*values.shape[:-1], found.vocab_size).clone()
    return whole.index_copy_(-1, found.ids, values[..., :-1])
