"""Run all requests in one loop by continuous batching (Yu et al. 2022, Orca, section 4.1) of speculative rounds.

The loop is `speculate`, which gives the lane of a finished row to a waiting request. Between rounds, lanes are added while
requests wait.
"""

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from transformers import BatchFeature, GenerationConfig, PreTrainedModel

from ..call import checks
from ..call.attached import attached_to
from ..call.configuration import Options, first_given, setting_of
from ..call.learned import Learned
from ..call.option_types import WholeNumber
from ..call.parts import make_schedule, target_and_drafter
from ..call.preparation import prepare_rounds
from ..call.statistics import RowStatistics
from ..distillation.followed import used
from ..interfaces import CachedModel, Drafter
from ..loop import speculate
from ..models import Inputs, choose, device_of, fits_trees, max_positions_of, modes_of_a_call, num_logits
from ..models.execution import note_decoded
from ..tokenizers.chat import ids_of
from ..types import Batch, Round
from ..verification import SampledVerification
from .requests import Finish, Receive, Request, logprobs_of, prepare_request
from .rows import Parked, PerRequestSamplers, PerRequestStopping, Rows, Running, admit, read_prompt, takes_media

#: where neither the model nor the server has a limit
DEFAULT_MAX_LENGTH = 2**15


def most_tokens(model: PreTrainedModel, max_length: int | None) -> int:
    """The most tokens of prompt and answer together, of an encoder-decoder model of each: its limit, or a lower one."""
    own = None if model.config.is_encoder_decoder else max_positions_of(model)
    return min((limit for limit in (max_length, own) if limit is not None), default=DEFAULT_MAX_LENGTH)


class QueueFull(RuntimeError):
    """Too many requests wait."""


class Closed(RuntimeError):
    """The engine takes no more requests."""


class Engine:
    """Run requests of one model, each with its own settings, in one batch on a thread of its own.

    Args:
        model: the target, attached or not.
        max_lanes: the most rows that run together; further requests wait in order.
        max_waiting: the most requests that wait.
        tokenizer: for stop strings.
        max_length: the most tokens of prompt and answer together. Default: the model's limit.
        **kwargs: options of drafts as in `generate`; attached ones count as well. Without any, requests
            are decoded plainly, in one batch as well.

    Attributes:
        statistics: counts over all requests so far.
        num_prompt_tokens: tokens of all prompts so far; `num_cached_tokens` of them were cached.
        takes_media: requests may have images or recordings, see `MultimodalModel`.
        ended: the number of requests by how they ended: "stop", "length", "error" or "abort".

    Raises:
        ValueError: the model has no ragged cache, or drafts do not fit it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_lanes: int = 16,
        max_waiting: int = 1024,
        tokenizer=None,
        max_length: int | None = None,
        **kwargs,
    ):
        for name, value in (("max_lanes", max_lanes), ("max_waiting", max_waiting), ("max_length", max_length or 2)):
            WholeNumber("runs no request: give 1 or more.").checked(name, value)
        self.model: PreTrainedModel = checks.unwrap(model, "model")
        self.max_lanes, self.max_waiting = max_lanes, max_waiting
        self.options = self._options(kwargs, tokenizer)
        checks.check_ragged(self.model, choose(self.model), "a server's engine")
        self._check_drafts()
        self.takes_media = takes_media(self.model, self.options)
        self.max_length = most_tokens(self.model, max_length)
        eos = ids_of(setting_of(self.model, {}, "eos_token_id"))
        self.pad = first_given(setting_of(self.model, {}, "pad_token_id"), *eos, 0)
        self.statistics = RowStatistics()
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self.ended: Counter[str] = Counter()
        self._numbers = count()
        self._waiting: deque[Request] = deque()
        self._jobs: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._running: Running = {}
        self._changed = threading.Condition()
        self._parked: Parked | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="hf-speculative-engine", daemon=True)
        self._thread.start()

    def _options(self, kwargs: dict[str, Any], tokenizer) -> Options:
        options = prepare_rounds(self.model, dict(kwargs), *attached_to(self.model))
        # A request's tokens do not depend on draft lengths, which may follow the clock.
        config = replace(options.config, reproducible=options.config.reproducible or True)
        if options.is_bitwise:
            config = replace(config, lanes=max(self.max_lanes, config.lanes or 0))
        return replace(options, config=replace(config, tokenizer=config.tokenizer or tokenizer))

    def _check_drafts(self) -> None:
        """Refuse drafts that fit no request now, rather than in every request."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=device_of(self.model))
        inputs = Inputs(ids, GenerationConfig(max_length=2), {"attention_mask": torch.ones_like(ids)})
        target, drafter = target_and_drafter(self.options, self.model, inputs, ids)
        target.release()
        drafter.release()
        if drafter.keeps_rows_together:
            draft = self.options.source.draft_model
            why = f"{type(draft).__name__} has one cache length for all of them"
            raise ValueError(f"a server's requests come and go, and {why}: use another `draft_model`, or leave it out.")

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(
        self,
        prompt: Sequence[int],
        receive: Receive,
        finish: Finish,
        seed: int | None = None,
        num_top: int | None = None,
        inputs: Mapping[str, Any] | None = None,
        **settings,
    ) -> Request:
        """Submit a request; returns at once.

        Args:
            prompt: its ids.
            receive: called with new tokens, on the engine's thread.
            finish: called once, with `None` or the error that ended the request, on the engine's thread.
            seed: of a sampled answer, whose tokens are those of `torch.manual_seed(seed)` and plain `generate` alone.
            num_top: keep log-probabilities of the new tokens and of the `num_top` likeliest ones, in `Request.logprobs`.
            inputs: further inputs of the model: images, recordings; only if the engine `takes_media`.
            **settings: keywords of `generate` for this request alone, `generation_config` among them.

        Raises:
            ValueError, TypeError: a call of `generate` would refuse it.
            QueueFull, Closed: too many requests wait, or the engine is closed.
        """
        settings = {"pad_token_id": self.pad} | settings if "generation_config" not in settings else settings
        settings |= BatchFeature(inputs).to(device_of(self.model)).data
        prepare = partial(prepare_request, self, prompt, settings, seed, receive, finish)
        # Models store positions after images on themselves: no other request may run meanwhile.
        request = self.call(prepare).result() if inputs else prepare()
        request.num_top = num_top
        with self._changed:
            free = max(0, self.max_lanes - len(self._running))  # requests for free lanes do not wait
            self._queue(request, self._waiting, self.max_waiting + free)
        return request

    def call(self, function: Callable[[], Any]) -> Future:
        """Run a function on the engine's thread between two rounds, while nothing else uses the model."""
        job: Future = Future()
        with self._changed:
            self._queue((job, function), self._jobs, self.max_waiting)
        return job

    def _queue(self, item: Any, queue: deque, most: int) -> None:
        if self._is_closed:
            raise Closed("the server is shutting down")
        if len(queue) >= most:
            raise QueueFull(f"{len(queue)} requests wait already: try again later")
        queue.append(item)
        self._changed.notify()

    def _run_a_job(self) -> None:
        if not self._jobs:
            return
        job, function = self._jobs.popleft()
        try:
            job.set_result(function())
        except Exception as error:
            job.set_exception(error)

    def close(self, timeout: float | None = None) -> None:
        """Take no more requests, and let running and waiting ones end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _serve(self) -> None:
        """The engine's thread: run the loop while there are requests, else let the draft learn, or sleep."""
        learner = self.options.config.learn
        while True:
            may_learn = learner is not None and learner.has_more_to_learn()
            with self._changed:
                is_asked = self._changed.wait_for(
                    lambda: self._waiting or self._jobs or self._is_closed, timeout=0 if may_learn else None
                )
                if is_asked and not self._waiting and not self._jobs:
                    return
            if not is_asked:
                with modes_of_a_call(self.model, self.options.source.draft_model):
                    learner.use_idle_time()
                continue
            self._run_a_job()
            first = self._take(self.max_lanes)
            if not first:  # all were cancelled
                continue
            try:
                with torch.no_grad(), modes_of_a_call(self.model, self.options.source.draft_model):
                    self._run(first)
            except Exception as error:  # told to every request that it ended
                for row in list(self._running):
                    self._end(row, error)

    def _take(self, num_rows: int) -> Running:
        """Start up to `num_rows` waiting requests, or one with an image."""
        taken: Running = {}
        with self._changed:
            is_alone = False
            while self._waiting and len(taken) < num_rows:
                has_media = self._waiting[0].inputs.has_media
                if taken and (has_media or is_alone):
                    break
                request, is_alone = self._waiting.popleft(), has_media
                taken[next(self._numbers)] = request
                self.num_prompt_tokens += len(request.ids)
            self._running |= taken
        for row, request in list(taken.items()):
            if request.is_over:
                del taken[row]
                self._end(row, None)
        return taken

    def _run(self, first: Running) -> None:
        """Run the loop until no request is left."""
        model, running = self.model, self._running
        request = next(iter(first.values()))
        mask = {"attention_mask": torch.ones_like(request.inputs.input_ids)}
        config = copy.copy(request.inputs.generation_config)
        config.max_length = self.max_length  # others may be longer
        inputs = Inputs(request.inputs.input_ids, config, mask)
        target, drafter = target_and_drafter(self.options, model, inputs, inputs.input_ids)
        target.keeps_done, target.admit = False, partial(admit, model, target)  # type: ignore[method-assign]
        batch = Rows(running, first, self.max_length, self.pad, self._take, lambda last: self._park(last, target))
        batch.shares_prefixes = target.shares_prefixes
        parked, self._parked = self._parked, None
        if request.inputs.has_media:
            read_prompt(model, target, batch, request)
        elif parked is not None:
            parked.give(batch, target, model)
        sampler = PerRequestSamplers(running, num_logits(model))
        learned = Learned(self.options, model, inputs, [])
        schedule = learned.timed(make_schedule(self.options))
        schedule.begin(batch, learned.costs)
        learned.start(schedule)
        drafter.may_branch = drafter.branches and target.takes_trees and fits_trees(model)
        drafter.follow(target)
        drafter.begin(batch, sampler)
        may_branch, grows_levels = drafter.may_branch, batch.grows_levels

        def choose_shape() -> None:
            """Drafts are trees where all requests take them; those with a processor that has a memory may not."""
            samplers = [running[row].sampler for row in batch.rows]
            drafter.may_branch = may_branch and all(sampler.takes_trees for sampler in samplers)
            batch.grows_levels = grows_levels and all(sampler.drafts_trees for sampler in samplers)

        choose_shape()
        rule, stopping = SampledVerification(), PerRequestStopping(running)
        rounds, start = speculate(batch, target, drafter, rule, schedule, sampler, stopping), time.perf_counter()
        try:
            for round in rounds:
                self._deliver(round, drafter)
                self._run_a_job()
                self._add_lanes(batch, target, drafter)
                choose_shape()
        finally:
            rounds.close()
            learned.keep(schedule)
            note_decoded((model, self.options.source.draft_model), time.perf_counter() - start)
        # Not after an error: caches that ran out of memory while they grew are not for later runs.
        target.release()
        drafter.release()

    def _add_lanes(self, batch: Batch, target: CachedModel, drafter: Drafter) -> None:
        """Add lanes for waiting requests, up to `max_lanes`."""
        num_lanes = len(batch.rows)
        newcomers = batch.newcomers(self.max_lanes - num_lanes) if num_lanes else None
        if newcomers is None:
            return
        lanes = list(range(num_lanes, num_lanes + len(newcomers.rows)))
        for part in (batch, target, drafter):
            part.select([*range(num_lanes), *[0] * len(lanes)])  # the newcomers replace the copies of lane 0
            part.admit(newcomers, lanes)

    def _park(self, batch: Rows, target: CachedModel) -> None:
        if any(len(text) > 1 for text in batch.texts):  # of images, nothing can be shared
            self._parked = Parked(batch, target, self.model)

    def _deliver(self, round: Round, drafter: Drafter) -> None:
        counts = (round.num_drafted, round.num_accepted, round.is_cut)
        rows = zip(round.rows, round.tokens, *counts, round.done, strict=True)
        for lane, (row, tokens, num_drafted, num_accepted, is_cut, is_done) in enumerate(rows):
            request = self._running[row]
            if not request.is_over:
                if request.num_top is not None:
                    request.logprobs += logprobs_of(round.logits[lane, : len(tokens)], tokens, request.num_top)
                for statistics in (request.statistics, self.statistics):
                    statistics.add_round(num_drafted, num_accepted, is_cut)
                request.tokens += tokens
                try:
                    request.receive(tokens)
                except Exception as error:  # the row ends with the next round
                    request.error = error
            if is_done:
                if not request.is_over:
                    if (learner := self.options.config.learn) is not None:
                        learner.use = used(request.inputs.generation_config)
                    drafter.learn(request.ids, request.tokens)
                self._end(row, request.error)

    def _end(self, row: int, error: BaseException | None) -> None:
        request = self._running.pop(row)
        self.num_cached_tokens += request.num_cached
        is_full = len(request.ids) + len(request.tokens) >= request.max_length
        is_full &= not request.stopping.eos.intersection(request.tokens[-1:])
        self.ended["error" if error else "abort" if request.is_cancelled else "length" if is_full else "stop"] += 1
        try:
            request.finish(error)
        except Exception:  # the client is gone
            request.cancel()
