"""The loop: draft, verify, accept, roll back. It knows no concrete drafter, rule, schedule, model or cache.

Chen et al. 2023 (arXiv 2302.01318), Algorithm 2; Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; for batches in
which each row keeps its own number of tokens.
"""

from collections.abc import Callable, Generator

from .interfaces import CachedModel, Drafter, Rule, Sampler, Schedule, Stopping
from .types import Batch, Draft, Round, along_path


def speculate(
    batch: Batch,
    target: CachedModel,
    drafter: Drafter,
    rule: Rule,
    schedule: Schedule,
    sampler: Sampler,
    stopping: Stopping,
    lap: Callable[[str], None] = lambda stage: None,
) -> Generator[Round, None, None]:
    """Generate until every row of `batch` is done; yields a `Round` after each target pass.

    Nothing outside the arguments changes, so the iterator may be closed at any time.

    Args:
        lap: told the stage that has just ended: "draft", "verify", "accept" or "rest".
    """
    while batch.rows:
        lap("rest")
        # 1. Draft: guess up to k tokens a row, written into the batch beyond its length.
        sampler.begin_round(batch)
        plan = [min(num, target.max_columns - 1) for num in schedule.plan(batch)]
        draft = drafter.propose(batch, plan, schedule, sampler) if any(plan) else Draft.empty(batch)
        batch.put(draft.tokens, tree=draft.tree_for(plan, drafter.may_branch))
        lap("draft")

        # 2. Verify: one target pass over all it has not seen gives the distribution after each of the k guesses.
        logits = target.logits(batch, ahead=draft.width, num_last=draft.width + 1)
        scores = sampler.target_scores(batch, logits)
        lap("verify")
        drafter.observe(batch, draft, logits)
        lap("draft")

        # 3. Accept: the rule keeps a prefix and adds a token; a stop inside the block cuts it.
        probs, is_valid = sampler.target_probs(scores)
        verdict = rule(draft, probs, sampler)
        if verdict.path is not None:  # a tree: from here on, the path that was kept is a chain
            draft, verdict, (logits, scores, is_valid) = along_path(draft, verdict, logits, scores, is_valid)
            batch.put(draft.tokens)
        round = batch.append(draft, verdict, is_valid)
        round.done = stopping.cut(batch, round.tokens, scores)
        round.num_from_draft = [min(n, len(tokens)) for n, tokens in zip(round.num_from_draft, round.tokens, strict=True)]
        round.logits, round.processed = logits, scores
        lap("accept")

        # 4. Roll back: forget what was not accepted; rows that are done leave, and rows that wait take their lanes.
        sampler.end_round(batch, round.tokens, round.chances)
        schedule.update(round)
        target.rollback(batch)
        drafter.rollback(batch)
        lap("rest")
        freed = [lane for lane, is_done in enumerate(round.done) if is_done]
        if newcomers := batch.newcomers(len(freed)):
            for part, stage in ((batch, "rest"), (target, "verify"), (drafter, "draft")):
                part.admit(newcomers, freed[: len(newcomers.rows)])
                lap(stage)
            del freed[: len(newcomers.rows)]
        if freed:
            running = sorted({*range(len(round.rows))} - {*freed})
            for part in (batch, target, drafter):
                part.select(running)
        yield round
