"""The seams of the loop, one class a stage, with signatures and defaults; the rooms hold the implementations."""

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from torch import Tensor

from .types import Batch, Costs, Draft, Few, Nodes, Round, Tree, Verdict

#: the schedule of a part of the drafts, and the number of tokens for each row
Part: TypeAlias = "tuple[Schedule, list[int]]"
#: guesses as trees, given the most nodes for each row
Guesses: TypeAlias = Callable[[list[int]], Sequence[Nodes]]
#: more draft tokens than any draft has
MANY = 2**20


class CachedModel:
    """A model that feeds what it has not seen.

    Its cache covers the first `seen[b]` tokens of each row; a pass feeds everything from there on. So a draft that was
    accepted whole, whose last token the draft model has never read, is no special case.

    Attributes:
        num_forwards: passes so far.
        keep: names of the outputs that `step_output` can give after a pass.
        keeps_rows_together: its cache has one length for all rows, so that rows far apart cost passes twice.
        takes_trees: a pass may feed a tree of draft tokens (`Batch.tree`), each seeing its own path only.
        takes_levels: passes may feed one level after the other, as a draft model that makes a tree does.
        shares_prefixes: what is cached of a token depends on the tokens before it alone, and `share` copies it.
        keeps_done: it is known what is cached of rows that are done, which `store` needs.
        rows_are_alone: positions of a model that counts its columns leave padding out, unlike in plain `generate`'s batches.
        reads_alone: each prompt is read in a pass of its own.
        max_columns: of a pass over draft tokens.
        window: it reads no more tokens of a row than this, its first and last ones; `None`: all.
    """

    num_forwards: int = 0
    keeps_done: bool = True
    shares_prefixes: bool = False
    rows_are_alone: bool = False
    reads_alone: bool = False
    max_columns: int = MANY
    window: int | None = None
    keeps_rows_together: bool = False
    takes_trees: bool = False
    takes_levels: bool = False
    keep: tuple[str, ...] = ()

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        """Feed each row's unseen tokens up to `ahead` beyond its length; logits `(batch, num_last, vocab)` of the last."""
        raise NotImplementedError

    def drafts_at_once(self, batch: Batch) -> bool:
        """Whether `draft` is there, and faster than a pass at a time."""
        return False

    def draft(self, batch: Batch, num_tokens: int, draw, settings: Hashable) -> tuple[Tensor, Tensor | None]:
        """Draw `num_tokens` tokens a row, each after the ones before: `(batch, num_tokens)`, and their distributions, if any.

        `draw(logits (batch, vocab), ahead)` gives tokens `(batch,)` and their distributions or `None`; no part of it may depend
        on the host, for it may be captured, and replayed wherever `settings` are the same.
        """
        raise NotImplementedError

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        """`(batch, num_tokens)` likeliest tokens, all below `vocab_size`; `None` where passes one by one are as fast."""
        return None

    def rollback(self, batch: Batch) -> None:
        """Forget all but the tokens of `batch`, the newest of which has not been fed; what was kept of a tree moves up."""
        raise NotImplementedError

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget everything: another batch begins."""
        raise NotImplementedError

    def release(self) -> None:
        """The call is over: memory may be kept for the next one."""

    def prefill(self, batch: Batch) -> None:
        """Feed all tokens of `batch`, for nothing but the cache."""
        self.logits(batch, ahead=0, num_last=1)
        self.rollback(batch)

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers` takes the place of the row at `lanes[i]`: its prompt is read in a pass without the others."""
        fresh = self.fresh()
        fresh.share(self, newcomers)
        fresh.prefill(newcomers)
        self.num_forwards = fresh.num_forwards
        self.take(fresh, lanes)

    def fresh(self):
        """The same model with an empty cache of its own."""
        fresh = copy.copy(self)
        fresh.reset()
        return fresh

    def share(self, other, batch: Batch) -> None:
        """Nothing was read yet: rows of `batch` begin with a copy of what `other` has cached of their `Batch.prefixes`."""

    def take(self, other, lanes: list[int]) -> None:
        """Row i of what `other` has cached takes the place of the row at `lanes[i]`."""
        raise NotImplementedError

    def forget(self, lanes: list[int]) -> None:
        """Other rows are at `lanes` from now on, of which nothing was read."""
        raise NotImplementedError

    def hidden_states(self, positions: Tensor, lanes: Sequence[int] | None = None) -> Tensor:
        """States `(batch, n, layers * hidden)` of the tokens at `positions (batch, n)`, a row's first token at 0.

        Rows are those at `lanes`, by default all; layers are those in `Drafter.hidden_layers`. All accepted tokens but a row's
        newest have states; at other positions, there is filler.
        """
        raise NotImplementedError

    def keys_and_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """What a layer has cached, each `(batch, heads, capacity, dim)`: a row's token t stands in slot t."""
        raise NotImplementedError

    def load(self, cache, batch: Batch) -> None:
        """Start from transformers' own `cache`, filled with the first columns of `batch`."""
        raise NotImplementedError

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        """What plain `generate` leaves behind: a transformers cache of all of `sequences` but the last column.

        Written into the user's own cache if one was `given`. Called once a call, when all rows are done.

        Args:
            sequences: `(batch, columns)`, those of the call.
            padding: columns that are hidden in each row's prompt.
            lengths: columns of each row up to its own end; plain decoding goes on with pad tokens, and so does the cache.
        """
        raise NotImplementedError

    def step_output(self, name: str, row: int, column: int) -> tuple[Tensor, ...]:
        """The last pass's `hidden_states` or `attentions` for the token in `column` of a row of the call: one a layer."""
        raise NotImplementedError


class Sampler:
    """From logits to distributions, and from distributions to tokens. Every random decision is `bernoulli` or `categorical`.

    Attributes:
        vocab_size: width of the target's logits.
        settings: all that drawing a draft token depends on besides the logits and torch's global generator; `None` if on more.
        one_hot_proposals: a draft token is a function of what is known: its distribution is one-hot (`Draft.probs=None`).
        keeps_draft_probs: the rule reads the distributions that draft tokens were drawn from.
        takes_trees: the target's scores may be those of a tree (`Batch.tree`), each processed after its own path.
        drafts_trees: and so may a draft's, see `level_scores`.
        measures_drafts: it wants to hear of `Verdict.chances`.
        proposes_argmax: a draft token is where the draft's logits are largest, as they are: nothing is drawn, and processors do
            no more than forbid some tokens, see `num_allowed`.
        proposes_likeliest: draft tokens of this round are not drawn, but the likeliest of their distributions, which `propose`
            gives beside them (`Draft.likeliest_of`).
        narrows: the target's scores and distributions may be of `Few` tokens, those that can be drawn.
    """

    vocab_size: int
    settings: Hashable | None = None
    one_hot_proposals: bool = False
    keeps_draft_probs: bool = True
    takes_trees: bool = False
    drafts_trees: bool = False
    measures_drafts: bool = False
    proposes_argmax: bool = False
    proposes_likeliest: bool = False
    narrows: bool = False

    def begin_round(self, batch: Batch) -> None:
        """Which rows are running, and where they are."""

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        """The round emitted `tokens`; `chances` as in `Round`."""

    def finish(self, most_steps: int | None = None) -> None:
        """The call is over, of which rows keep at most `most_steps` new tokens (`Stopping.end`)."""

    def num_allowed(self, tokens: Tensor) -> Tensor | None:
        """Of each row of `tokens (batch, n)`, where logits are largest, how many come before a forbidden one; `None`: all."""
        return None

    def target_scores(self, batch: Batch, logits: Tensor) -> Tensor | Few:
        """Processed float32 logits `(batch, k + 1, vocab)` of the target's pass."""
        raise NotImplementedError

    def draft_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        """Processed float32 logits `(batch, vocab)` of a draft step, `logits (batch, any vocab)`, after `ahead` draft tokens.

        Models may pad their vocabulary to different widths: the rows they share are used, the rest cannot be drafted.
        """
        return self.level_scores(batch, logits[:, None], ahead)[:, 0]

    def level_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        """The same for a tree: `logits (batch, n, any vocab)`, the first of which follow `ahead` nodes of `Batch.tree`."""
        raise NotImplementedError

    def probs(self, scores: Tensor) -> Tensor:
        """The distribution that `scores (..., vocab)` stand for, float32."""
        raise NotImplementedError

    def target_probs(self, scores: Tensor | Few) -> tuple[Tensor | Few, Tensor]:
        """The target's distributions `(batch, k + 1, vocab)`, and which of them really are some, `(batch, k + 1)` bool.

        NaN, infinity or nothing allowed: there plain `generate` raises, and so do we, once the text gets there without a stop.
        """
        raise NotImplementedError

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        """How likely the target takes each token `ahead` places ahead, in logs, by a draft's `scores (batch, n, vocab)`."""
        raise NotImplementedError

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        """Draw a draft token from `scores (batch, vocab)`: tokens `(batch,)` and, if kept, what they were drawn from."""
        raise NotImplementedError

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        """Draw `(batch, n)` tokens from `probs (batch, n, vocab)`, the distributions `ahead`, `ahead + 1`, ... places ahead.

        With a `tree`, its positions: the first, then the one after each node.
        """
        raise NotImplementedError

    def bernoulli(self, probability: Tensor) -> Tensor:
        """Independent coins: True with `probability`, of any shape."""
        raise NotImplementedError


class Stopping:
    """Which new tokens end their row.

    Attributes:
        end: columns of the text in which the last row met a stop, where rows that met theirs go on beside it (`cut`); what rows
            have beyond is not the call's. `None`: each row is cut at its own stop.
    """

    end: int | None = None
    #: an answer may depend on more than the tokens, on the clock for instance
    may_differ_between_ranks: bool = False

    def cut(self, batch: Batch, tokens: list[list[int]], scores: Tensor | Few) -> list[bool]:
        """Cut the new `tokens` of each row, in place, after the first that ends it; which rows are done.

        Token i was chosen at position i of `scores (batch, k + 1, vocab)`.
        """
        raise NotImplementedError


class Drafter:
    """Stage 1, who guesses. A subclass needs `propose`; the rest has defaults for a drafter without a memory.

    Attributes:
        num_forwards: model passes so far, for the statistics.
        keeps_rows_together: it pays to keep the rows of a batch at similar lengths: see `CachedModel`.
        one_hot_proposals: proposals are not drawn by chance, so that `Draft.probs` is always `None`.
        hidden_layers: which of transformers' `hidden_states` of the target the drafter reads, if any (-1 is the last).
        branches: it proposes trees of draft tokens, where it may.
        may_branch: set before a call begins: all parts of it take trees; else propose a chain. A path may be no longer than a
            row has room for (`Batch.rooms`); what is longer is cut.
    """

    num_forwards: int = 0
    keeps_rows_together: bool = False
    one_hot_proposals: bool = False
    hidden_layers: tuple[int, ...] = ()
    branches: bool = False
    may_branch: bool = False

    def branches_with(self, sampler: Sampler) -> bool:
        """Whether `branches` holds for a call whose tokens are drawn by this `sampler`."""
        return self.branches

    def follow(self, target: CachedModel) -> None:
        """Called once a call, before `begin`: the target that is drafted for, with its cache and `hidden_states`."""

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        """Called once a call, before its first round: forget earlier calls."""

    def prefill(self, batch: Batch) -> None:
        """Read the prompts of `batch` ahead of time; their rows are then copied by `select`."""

    def propose(self, batch: Batch, num_tokens: list[int], schedule: "Schedule", sampler: Sampler) -> Draft:
        """Propose up to `num_tokens[b]` tokens for row b. The loop asks only if one of them is above 0."""
        raise NotImplementedError

    def propose_beside(
        self, batch: Batch, num_tokens: list[int], schedule: "Schedule", sampler: Sampler, guesses: Guesses
    ) -> Draft:
        """As `propose`, with `guesses` that this drafter may add to its tree."""
        return self.propose(batch, num_tokens, schedule, sampler)

    def observe(self, batch: Batch, draft: Draft, logits: Tensor) -> None:
        """The target has seen `draft`: its `logits (batch, k + 1, vocab)` before and after each token, no processor applied."""

    def rollback(self, batch: Batch) -> None:
        """The round is over and `batch` has its new lengths: forget whatever was not accepted."""

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        """A row is done: the tokens it was given, without padding, and those it got. Called after the round's `select`."""

    def release(self) -> None:
        """The call is over: memory may be kept for the next one."""

    def select(self, indices: list[int]) -> None:
        """Keep these rows, in this order."""

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        """Row i of `newcomers`, a prompt that waited, takes the place of the row at `lanes[i]`, which is done."""


class Rule:
    """Stages 2 and 3, which guesses survive: a pure function of tensors, without model or cache.

    `lossless` declares the contract that the tests hold a rule to: the tokens kept have exactly the distribution of plain
    sampling from `target_probs`.
    """

    lossless: bool = False
    #: it looks at `Draft.probs`; where it does not, they are not kept
    reads_draft_probs: bool = True
    #: all it emits are the target's own draws, one a position: under one seed, those of plain `generate`
    emits_draws: bool = False
    #: it judges trees as well, and tells the path that is kept
    takes_trees: bool = False
    #: `target_probs` may be those of `Few` tokens
    takes_few: bool = False

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        """Judge `draft` by `target_probs (batch, k + 1, vocab)`.

        Position i follows the draft's first i tokens; of a tree, node i - 1 and the path to it.
        """
        raise NotImplementedError


class Schedule:
    """How many tokens to guess next.

    A decision may depend on the past, on the draft tokens so far and on their distributions, never on a token that is then left
    out of verification: that would bias the output (algorithm and counter-example in docs/correctness.md).
    """

    learned: object = None  #: what it knows about its pair, from which a later call may start
    #: tokens a row in the time of a plain step, which the last plan promises; `None` where nothing is known of time
    speed: float | None = None
    weighs_costs: bool = False  #: its plans depend on what rounds cost
    reason: str | None = None  #: why the last plan drafts nothing, where that was weighed

    def begin(self, batch: Batch, costs: Callable[[int], Costs]) -> None:
        """Called once a call, before its first round. `costs(num_rows)` are the current estimates of what rounds cost."""

    def num_draft_tokens(self, row: int) -> int:
        """How many tokens to propose for this row of the call in the next round."""
        raise NotImplementedError

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        """How many of a row's draft tokens to propose, if no pass is needed to know their chances, the likeliest first: all."""
        return [len(row) for row in chances]

    @property
    def chooses_nodes(self) -> bool:
        """`num_nodes` has a say."""
        return type(self).num_nodes is not Schedule.num_nodes

    def num_levels(self, batch: Batch) -> int | None:
        """How deep the next tree is to be, of a drafter that asks for each level, 0 for a chain; `None`: as that is set."""
        return None

    def num_passes(self, round: Round) -> int:
        """Passes of the draft in a finished round: as many as the longest draft has tokens."""
        return max(round.num_drafted)

    def parts(self, plan: list[int]) -> tuple[Part, Part]:
        """Where a call has both: who plans guesses that take no pass, and who plans drafts that do; of `plan`, each its own."""
        return (self, plan), (self, plan)

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        """After each draft token, which rows end their draft with it: `(batch,)` bool. `tokens (batch,)` were drawn from the
        draft's processed logits, `scores (batch, vocab)`."""
        return None

    def should_stop_before(self, chances: Tensor) -> Tensor | None:
        """As `should_stop`, before a token is drawn, by its estimated `chances (batch,)` to be kept."""
        return None

    @property
    def may_stop(self) -> bool:
        """Drafts may end early: one of these two has a say."""
        own, base = type(self), Schedule
        return own.should_stop is not base.should_stop or own.should_stop_before is not base.should_stop_before

    def update(self, round: Round) -> None:
        """Learn from a finished round."""

    def plan(self, batch: Batch) -> list[int]:
        """Draft lengths for each row of the batch, within what the row can still use."""
        rooms = zip(batch.rows, self.rooms(batch), strict=True)
        return [min(self.num_draft_tokens(row), room) if room else 0 for row, room in rooms]

    @staticmethod
    def rooms(batch: Batch) -> list[int]:
        """How many draft tokens each row can use; of a tree, whose siblings take no room, any number.

        None in the first round: the prompt then goes through the target in the shape that plain `generate` gives it, and the
        first token is there as early. Later ones leave room for the token that the target adds.
        """
        if batch.is_unread:
            return [0] * len(batch.rows)
        return [MANY if room and batch.branches else room for room in batch.rooms]
