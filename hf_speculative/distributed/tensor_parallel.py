"""Tensor and pipeline parallel models: several ranks run one model, so all must take the same decisions.

Each rank runs the same rounds, and a pass of the model is the work of all of them. Separate draws, separate clocks or sums that
differ in the last bit would make their decisions differ. So the first rank decides and tells the others: how much to draft,
what was drafted, what was kept. A draft model that each rank holds whole is run by the first one only, for all.

The messages are whole numbers and, for acceptance probabilities, a few floats: three small broadcasts a round, besides the two
in each layer of a pass.
"""

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional
from transformers import PreTrainedModel

from ..drafting.wrapped import Nothing, WrappedDrafter
from ..forwarding import Forwarded, forwards_to
from ..interfaces import Drafter, Rule, Sampler, Schedule, Stopping
from ..models import device_of, group_of, is_sharded
from ..schedules.wrapped import WrappedSchedule
from ..types import Batch, Draft, Verdict


class SingleProcess:
    """A single process, whose parts decide for themselves."""

    def begin(self, generator: torch.Generator | None) -> None:
        """A call begins that draws from `generator`; `None` if unknown."""

    def end(self) -> None:
        """The call is over."""

    def as_it_is(self, part: Any) -> Any:
        return part

    drafter = rule = schedule = sampler = stopping = as_it_is


class TensorParallelGroup(SingleProcess):
    """The ranks of one model: wraps each part that decides.

    Args:
        group: their process group.
        device: of the model.
        all_draft: the drafter runs a model that the ranks share as well, so it needs all of them.

    Attributes:
        decides: this is the first rank.
    """

    def __init__(self, group, device: torch.device, all_draft: bool):
        self.group, self.device, self.all_draft = group, device, all_draft
        self.first = distributed.get_global_rank(group, 0)
        self.decides = distributed.get_rank(group) == 0

    def broadcast(self, tensor: Tensor) -> Tensor:
        """`tensor` as the first rank has it; it has the same shape on all of them."""
        tensor = tensor.to(self.device, copy=True).contiguous()
        distributed.broadcast(tensor, self.first, group=self.group)
        return tensor

    def begin(self, generator: torch.Generator | None) -> None:
        self.generator = generator
        if self.generator is not None:
            state = self.generator.get_state()
            self.were_alike = torch.equal(self.broadcast(state).cpu(), state)

    def end(self) -> None:
        """Only the first rank has drawn. If all generators were equal before, as plain sampling needs, they are equal again."""
        if self.generator is not None:
            state = self.broadcast(self.generator.get_state()).cpu()
            if self.were_alike:
                self.generator.set_state(state)

    def drafter(self, drafter: Drafter) -> Drafter:
        return AgreedDrafter(self, drafter) if self.all_draft or self.decides else AgreedDrafter(self, Absent(drafter))

    def rule(self, rule: Rule) -> Rule:
        return AgreedRule(self, rule)

    def schedule(self, schedule: Schedule) -> Schedule:
        return AgreedSchedule(self, schedule)

    def sampler(self, sampler: Sampler) -> Sampler:
        return AgreedSampler(self, sampler) if self.all_draft else sampler

    def stopping(self, stopping: Stopping) -> Stopping:
        return AgreedStopping(self, stopping) if stopping.may_differ_between_ranks else stopping


class AgreedDrafter(WrappedDrafter):
    """The first rank's proposal, without the probabilities, which that rank alone needs."""

    def __init__(self, ranks: TensorParallelGroup, drafter: Drafter):
        super().__init__(drafter)
        self.ranks = ranks

    def propose(self, batch: Batch, num_tokens: list[int], schedule: Schedule, sampler: Sampler) -> Draft:
        ranks, longest = self.ranks, max(num_tokens)
        draft = self.drafter.propose(batch, num_tokens, schedule, sampler)
        if draft.width > longest:
            raise ValueError(f"the drafter proposed {draft.width} tokens where at most {longest} were asked for.")
        tokens = functional.pad(draft.tokens, (0, longest - draft.width))
        width = torch.full_like(draft.num_tokens, draft.width)
        broadcast = ranks.broadcast(torch.cat([width[:, None], draft.num_tokens[:, None], tokens], 1))
        if ranks.decides:
            return draft
        broadcast = broadcast.to(batch.tokens.device)
        return Draft(broadcast[:, 2 : 2 + int(broadcast[0, 0])], None, broadcast[:, 1])


class Absent(Nothing):
    """Takes the place of a drafter that only the first rank runs."""

    keeps_rows_together = Forwarded("drafter", "keeps_rows_together")  # type: ignore[assignment]
    release = Forwarded("drafter", "release")  # type: ignore[assignment]

    def __init__(self, drafter: Drafter):
        self.drafter, self.one_hot_proposals = drafter, drafter.one_hot_proposals


class AgreedRule(Rule):
    """The first rank's verdict, which is also what the schedule learns from."""

    def __init__(self, ranks: TensorParallelGroup, rule: Rule):
        self.ranks, self.rule = ranks, rule
        self.lossless, self.reads_draft_probs = rule.lossless, rule.reads_draft_probs

    def __call__(self, draft: Draft, target_probs: Tensor, sampler: Sampler) -> Verdict:
        ranks = self.ranks
        broadcast = torch.zeros(len(draft.tokens), 4 + draft.width, dtype=torch.float64)  # exact for token ids
        if ranks.decides:
            verdict = self.rule(draft, target_probs, sampler)
            acceptance_prob = verdict.acceptance_prob
            if acceptance_prob is None:
                places = torch.arange(draft.width, device=draft.tokens.device)
                acceptance_prob = places < verdict.num_accepted[:, None]
            chances = acceptance_prob.new_zeros(len(acceptance_prob), 2) if verdict.chances is None else verdict.chances
            decided = torch.stack([verdict.num_accepted, verdict.next_token], 1)
            broadcast = torch.cat([decided, chances.double(), acceptance_prob.double()], 1)
        broadcast = ranks.broadcast(broadcast).to(draft.tokens.device)
        return Verdict(broadcast[:, 0].long(), broadcast[:, 1].long(), broadcast[:, 4:], chances=broadcast[:, 2:4])


class AgreedSchedule(WrappedSchedule):
    """The first rank's lengths; its clock is its own."""

    def __init__(self, ranks: TensorParallelGroup, schedule: Schedule):
        super().__init__(schedule)
        self.ranks = ranks

    def plan(self, batch: Batch) -> list[int]:
        return self.ranks.broadcast(torch.tensor(self.schedule.plan(batch))).tolist()

    def num_nodes(self, batch: Batch, chances: list[list[float]]) -> list[int]:
        counts = self.schedule.num_nodes(batch, chances)
        return self.ranks.broadcast(torch.tensor(counts)).tolist() if self.ranks.all_draft else counts

    def should_stop(self, scores: Tensor, tokens: Tensor) -> Tensor | None:
        return self._agreed(self.schedule.should_stop(scores, tokens))

    def should_stop_before(self, chances: Tensor) -> Tensor | None:
        return self._agreed(self.schedule.should_stop_before(chances))

    def _agreed(self, stop: Tensor | None) -> Tensor | None:
        if stop is None or not self.ranks.all_draft:
            return stop
        return self.ranks.broadcast(stop).to(stop.device)


@forwards_to("sampler")
class AgreedSampler(Sampler):
    """A model that all ranks draft with has to read the same draft tokens on each of them."""

    def __init__(self, ranks: TensorParallelGroup, sampler: Sampler):
        self.ranks, self.sampler, self.vocab_size = ranks, sampler, sampler.vocab_size

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        tokens, probs = self.sampler.propose(scores, ahead)
        return self.ranks.broadcast(tokens).to(tokens.device), probs


class AgreedStopping(Stopping):
    """Criteria of the user's, `max_time` among them, may answer differently on each rank."""

    def __init__(self, ranks: TensorParallelGroup, stopping: Stopping):
        self.ranks, self.stopping = ranks, stopping

    def cut(self, batch: Batch, tokens: list[list[int]], scores: Tensor) -> list[bool]:
        whole = [list(new) for new in tokens]
        done = self.stopping.cut(batch, tokens, scores)
        end = self.stopping.end or 0
        answers = [[len(new), int(is_done), end] for new, is_done in zip(tokens, done, strict=True)]
        answers = self.ranks.broadcast(torch.tensor(answers)).tolist()
        for new, full, (length, _, end) in zip(tokens, whole, answers, strict=True):
            new[:], self.end = full[:length], end or None
        return [bool(is_done) for _, is_done, _ in answers]


def all_ranks_draft(model: PreTrainedModel, draft: PreTrainedModel | None, draft_reads_target: bool) -> bool:
    """Whether drafts are made on all ranks of a shared model, not by the first one for all. Arguments as of `ranks_of`."""
    own = group_of(draft)
    if own is None and group_of(model) is None:
        return False
    return draft is None or own is not None or draft_reads_target or is_sharded(draft)


def ranks_of(model: PreTrainedModel, draft: PreTrainedModel | None, draft_reads_target: bool) -> SingleProcess:
    """Who decides in a call.

    Args:
        draft: the draft model, if there is one; `draft_reads_target`: it works on the target's own states, on every rank.
    """
    group = group_of(model) or group_of(draft)
    if group is None:
        return SingleProcess()
    return TensorParallelGroup(group, device_of(model), all_ranks_draft(model, draft, draft_reads_target))
