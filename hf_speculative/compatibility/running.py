"""Running the trials: which sources are tried on a target, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.configuration import SpeculativeConfig
from ..call.measured_costs import at_once
from ..call.prompts import settings_of_rows
from ..call.sources import SOURCES, source_of
from ..call.statistics import Statistics
from ..drafting.source import DraftSource
from ..generation import generate_rounds
from ..interfaces import Schedule
from ..models.model_state import keeping
from ..schedules import Constant
from ..schedules.wrapped import WrappedSchedule
from ..types import Batch, Costs, Round
from .trials import DECODINGS, Counted, Trial

#: draft tokens of chains that may have any length
NUM_DRAFT_TOKENS = 6
#: called before each step with what comes next
Watch = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """A source that may draft for a target.

    Attributes:
        options: the keywords that ask for it, ready for JSON.
        given: the keywords as `generate` gets them.
    """

    source: DraftSource
    options: dict[str, Any]
    given: dict[str, Any]

    @property
    def label(self) -> str:
        return self.source.label

    def schedule(self, model: PreTrainedModel) -> tuple[Schedule, bool]:
        """How much to draft for the target, and whether these are chains of a number that a call may choose."""
        source = self.source
        if source.guesses_nodes:
            return source.adaptive_schedule(source.most_tokens, is_default=True), False
        return Constant(source.num_draft_tokens or source.max_draft_tokens(model) or NUM_DRAFT_TOKENS), True


def candidates(target: PreTrainedModel) -> Iterator[Candidate]:
    """The sources that fit a target without anything else: copies, recycling, its own layers."""
    labels = set()
    for kind in SOURCES:
        for value in kind.worth_trying(target):
            source = source_of(kind.argument, value).for_model(target)
            try:
                checks.check_source(source, target)
            except ValueError:  # most targets have no MTP layers, and some cannot be cut in two
                continue
            if source.label not in labels:
                labels.add(source.label)
                yield Candidate(source, {kind.argument: value}, {kind.argument: value})


class Overheard(WrappedSchedule):
    """A schedule, whose costs are noted as well.

    Args:
        note: called with the costs when a call begins.
    """

    def __init__(self, schedule: Schedule, note: Callable[[Costs], None]):
        super().__init__(schedule)
        self.note = note

    def begin(self, batch: Batch, costs: Callable[[], Costs]) -> None:
        known = costs()
        self.note(known)
        self.schedule.begin(batch, lambda: known)


@dataclass
class Limits:
    """How much is tried.

    Attributes:
        seconds: for all trials together. A text that cannot be tried with all of them in what is left is not begun; if that is
            the first one, each has its share of the time.
        num_new_tokens: of each text.
        batch_sizes: how many texts are written side by side.
        clock: gives seconds.
    """

    seconds: float = 20.0
    num_new_tokens: int = 64
    batch_sizes: tuple[int, ...] = (1,)
    clock: Callable[[], float] = time.perf_counter


def run_trials(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    tried: list[Candidate],
    prompts: list[list[int]],
    limits: Limits,
    watch: Watch = lambda what: None,
    decodings: Iterable[str] = tuple(DECODINGS),
) -> list[Trial]:
    """Every candidate, greedy and sampled, in batches of each size, on the same prompts; one that cannot run says why.

    A batch is made of the prompts that are next, from the first again where there are too few.
    """
    settings = settings_of_rows(target, tokenizer, {"max_new_tokens": limits.num_new_tokens})
    running = [
        _Running(target, one, decoding, settings, limits.clock, batch_size)
        for one in tried
        for batch_size in limits.batch_sizes
        for decoding in decodings
    ]
    end, taken = limits.clock() + limits.seconds, 0.0
    for turn in range(len(prompts)):
        start, going = limits.clock(), [one for one in running if turn * one.batch_size < len(prompts)]
        if not going or end - start < taken:
            break
        for index, one in enumerate(going):
            now, first = limits.clock(), turn * one.batch_size
            ids = [prompts[i % len(prompts)] for i in range(first, first + one.batch_size)]
            watch(f"text {first + 1}: {one.candidate.label}, {one.decoding}")
            one.run(ids, seed=turn, until=now + max(0.0, end - now) / (len(going) - index))
        taken = limits.clock() - start
    return with_one_plain_step([one.result() for one in running])


class _Running:
    """One candidate under one decoding, batch after batch."""

    def __init__(
        self,
        target: PreTrainedModel,
        candidate: Candidate,
        decoding: str,
        settings: dict[str, Any],
        clock: Callable[[], float],
        batch_size: int,
    ):
        self.target, self.candidate, self.decoding, self.clock = target, candidate, decoding, clock
        self.batch_size = batch_size
        self.costs: list[Costs] = []
        schedule, self.is_chain = candidate.schedule(target)
        config = SpeculativeConfig(schedule=Overheard(schedule, self.costs.append))
        self.kwargs = settings | DECODINGS[decoding] | candidate.given | {"speculative_config": config}
        self.num_tokens = 0
        self.rounds: list[list[Counted]] = []
        self.counts: list[Statistics] = []
        self.kept: dict = {}  # nothing is copied from texts of the others
        self.failure: str | None = None

    def run(self, prompts: list[list[int]], seed: int, until: float) -> None:
        """One more batch, which ends at `until` on the clock at the latest, but after a round with a draft at the earliest."""
        if self.failure is not None:
            return
        device = self.target.device
        chance = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with chance, keeping(self.target, self.kept), at_once():
            torch.manual_seed(seed)
            try:
                self._one(prompts, until)
            except (ValueError, RuntimeError) as error:  # this one's own, out of memory say; the others go on
                self.failure = str(error)

    def _one(self, prompts: list[list[int]], until: float) -> None:
        texts: list[list[Counted]] = [[] for _ in prompts]
        self.rounds += texts
        width, pad = max(map(len, prompts)), self.kwargs["pad_token_id"]
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in prompts], device=self.target.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts], device=self.target.device)
        call = generate_rounds(self.target, input_ids=ids, attention_mask=mask, **self.kwargs)
        with closing(call) as rounds:
            for number, (round, counts) in enumerate(rounds):
                if number == 0:  # the prompts' own pass, which drafts nothing
                    self.counts.append(counts)
                    continue
                self._follow(round, texts)
                if self.clock() >= until:
                    break

    def _follow(self, round: Round, texts: list[list[Counted]]) -> None:
        longest = max(round.num_drafted)
        rows = zip(round.rows, round.tokens, round.num_drafted, round.num_accepted, round.is_cut, strict=True)
        for row, tokens, drafted, accepted, is_cut in rows:
            self.num_tokens += len(tokens)
            if not is_cut:
                texts[row].append(Counted(drafted, accepted, longest))

    def result(self) -> Trial:
        texts = tuple(tuple(rounds) for rounds in self.rounds if rounds)
        longest = max((round.width for rounds in texts for round in rounds), default=0)
        times = self.costs[-1].curve(self.batch_size, longest) if self.costs else [1.0]
        total = Statistics()
        for counts in self.counts:
            total += counts
        spent = {stage: total.seconds[stage] for stage in ("draft", "verify", "accept")}
        return Trial(
            source=self.candidate.label,
            options=self.candidate.options,
            decoding=self.decoding,
            num_tokens=self.num_tokens,
            texts=texts,
            times=tuple(times),
            batch_size=self.batch_size,
            is_timed=times[0] != 1.0,  # a plain step, in plain steps, where nothing could be timed
            is_chain=self.is_chain,
            draft_share=spent["draft"] / sum(spent.values()) if any(spent.values()) else 0.0,
            failure=self.failure,
        )


def with_one_plain_step(trials: list[Trial]) -> list[Trial]:
    """Of all that was measured, the fastest plain step of each decoding is the one to beat: others met a busier machine."""
    fastest: dict[tuple[str, int], float] = {}
    for trial in trials:
        if trial.is_timed:
            key = trial.decoding, trial.batch_size
            fastest[key] = min(fastest.get(key, trial.times[0]), trial.times[0])
    return [
        replace(trial, times=(fastest[trial.decoding, trial.batch_size], *trial.times[1:])) if trial.is_timed else trial
        for trial in trials
    ]
