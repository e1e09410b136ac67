"""Record what each round drafted and kept, with the distributions, by wrappers of the call's rule and schedule.

The loop knows nothing of it. Of each distribution only the tokens that count are kept, so that a long text stays small.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..forwarding import forwards_to
from ..interfaces import Rule, Sampler
from ..schedules import Constant
from ..types import Draft, Round, Verdict

#: how many of the likeliest tokens are kept, of the target and of the draft
NUM_LIKELIEST = 5


@dataclass(frozen=True)
class Guess:
    """A draft token.

    Attributes:
        parent: the guess that it follows, -1 for the newest token of the text.
        chance: that it and all before it are kept, given the draft.
    """

    token: int
    parent: int
    is_kept: bool
    chance: float | None


@dataclass(frozen=True)
class Place:
    """A place in the text that a round judged, with the probabilities there of the tokens that count.

    Attributes:
        guesses: which of the round's guesses stand there: one of a chain, none after its last, several of a tree.
        token: what the text has there; `None` beyond the end of the round.
        probs: of the `target`; of the `draft`, what the guess was drawn from, if there is such a thing and it is known; and of
            the `residual`, what the next token is drawn from if the draft ends here, where that is not the target.
    """

    guesses: list[int]
    token: int | None
    probs: dict[str, dict[int, float]]


@dataclass(frozen=True)
class RoundRecord:
    """One round of one text.

    Attributes:
        rule: the name of the rule that judged; `is_greedy`, `is_tree`: how it was drafted.
        start: how many new tokens there were before.
        guesses: what was drafted, parents first.
        places: of a chain all of them, of a tree those on the path that was kept.
        tokens: what the text got; the first `num_from_draft` of them are guesses.
        is_cut: the text ended inside the guesses that were kept.
    """

    rule: str
    is_greedy: bool
    is_tree: bool
    start: int
    guesses: list[Guess]
    places: list[Place]
    tokens: list[int]
    num_from_draft: int
    is_cut: bool


#: rules with a residual: `token` weighs the whole target against the draft, `block` the share that the draft kept so far
RESIDUAL = ("token", "block")


class WatchedLength(Constant):
    """A number of draft tokens, by whom the draft's scores pass: where it takes the likeliest, the rule does not see them."""

    def __init__(self, num_tokens: int):
        super().__init__(num_tokens)
        self.scores: list[Tensor] = []

    def __deepcopy__(self, memo) -> "WatchedLength":
        return self  # calls copy their schedule; the copy's scores would be lost

    def should_stop(self, scores: Tensor, tokens: Tensor) -> None:
        self.scores.append(scores)


@forwards_to("rule")
class Recorder(Rule):
    """A rule that records the rounds of a call with one row.

    Args:
        name: of the rule, as in `RULES`.
        length: given to the call as its schedule, where the draft takes the likeliest tokens of a model.
        is_greedy: the target takes its likeliest token.
    """

    def __init__(self, name: str, rule: Rule, length: WatchedLength | None, is_greedy: bool):
        self.name, self.rule, self.length, self.is_greedy = name, rule, length, is_greedy
        self.judged: tuple[Draft, Tensor, Verdict] | None = None
        self.rounds: list[RoundRecord] = []

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        verdict = self.rule(draft, target_probs, sampler)
        self.judged = draft, target_probs, verdict
        return verdict

    def follow(self, round: Round) -> None:
        """Record the round that has just ended."""
        assert self.judged is not None
        draft, probs, verdict = self.judged
        self.judged = None
        num_guesses, num_kept = int(draft.num_tokens[0]), int(verdict.num_accepted[0])
        kept = list(range(num_kept)) if verdict.path is None else verdict.path[0, :num_kept].tolist()
        guesses = _guesses(draft, verdict, num_guesses, kept)
        is_tree = draft.parents is not None
        nodes = [-1, *(kept if is_tree else range(num_guesses))]
        # Greedily, the rule has seen the target's likeliest token alone.
        target = round.scores[0].softmax(-1) if self.is_greedy else probs[0, [node + 1 for node in nodes]]
        drawn_from = self._drawn_from(draft)
        places = []
        for i, node in enumerate(nodes):
            here = [n for n, guess in enumerate(guesses) if guess.parent == node]
            token = round.tokens[0][i] if i < len(round.tokens[0]) else None
            q = None if is_tree or drawn_from is None or i >= len(drawn_from) else drawn_from[i]
            left = None
            if q is not None and self.name in RESIDUAL:
                share = 1.0 if self.name == "token" or i == 0 else guesses[i - 1].chance or 0.0
                left = (share * target[i, : len(q)] - q).clamp(min=0)
                left = left / left.sum() if left.sum() > 0 else None
            told = [guesses[n].token for n in here] + ([] if token is None else [token])
            places.append(_place(here, token, told, {"target": target[i], "draft": q, "residual": left}))
        start = sum(len(before.tokens) for before in self.rounds)
        how, end = (self.name, self.is_greedy, is_tree), (round.num_from_draft[0], round.is_cut[0])
        self.rounds.append(RoundRecord(*how, start, guesses, places, round.tokens[0], *end))

    def _drawn_from(self, draft: Draft) -> Tensor | None:
        """`(k, vocab)`, what each guess of a chain was drawn from, if known."""
        scores = []
        if self.length is not None:
            scores, self.length.scores = self.length.scores, []
        if draft.probs is not None:
            return draft.probs[0]
        return torch.cat(scores).softmax(-1) if scores else None


def _guesses(draft: Draft, verdict: Verdict, num_guesses: int, kept: list[int]) -> list[Guess]:
    tokens = draft.tokens[0, :num_guesses].tolist()
    parents = list(range(-1, num_guesses - 1)) if draft.parents is None else draft.parents[0, :num_guesses].tolist()
    known = verdict.acceptance_prob
    chances = [None] * num_guesses if known is None else known[0, :num_guesses].tolist()
    is_kept = [node in kept for node in range(num_guesses)]
    return list(map(Guess, tokens, parents, is_kept, chances))


def _place(guesses: list[int], token: int | None, told: list[int], by_kind: dict[str, Tensor | None]) -> Place:
    """With the tokens that are likeliest by any distribution, and those `told`; the target's likeliest first."""
    known = {kind: probs for kind, probs in by_kind.items() if probs is not None}
    likeliest = [one for probs in known.values() for one in probs.topk(min(NUM_LIKELIEST, len(probs))).indices.tolist()]
    tokens = sorted(dict.fromkeys([*likeliest, *told]), key=lambda one: (-float(known["target"][one]), one))

    def of(probs: Tensor) -> dict[int, float]:
        return {one: float(probs[one]) if one < len(probs) else 0.0 for one in tokens}

    return Place(guesses, token, {kind: of(probs) for kind, probs in known.items()})
