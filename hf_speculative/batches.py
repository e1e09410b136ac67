"""Continuous batching: `generate_batches` and `model.generate_batch` replace a row that is done by the next prompt at once.

Prompts are taken in windows. A window is one left-padded call of the model's own `generate`, so that processors, criteria and
seeds mean what they mean there. But only `batch_size` of its rows run at a time, and the others wait for a lane.
(Continuous batching of Yu et al. 2022, Orca, section 4.1, for rounds in place of steps.)
"""

import inspect
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .call import checks
from .call.attached import Attached, attached_to, plain_generate_of, use_kernel_of
from .call.configuration import SpeculativeConfig, setting_of, with_settings
from .call.decoding import CannotRefill, SpeculativeDecoding
from .call.option_types import WholeNumber
from .call.preparation import prepare_rounds, with_stop_strings
from .call.prompts import check_prompts, padded, prompt_ids, settings_of_requests, settings_of_rows
from .call.statistics import RowStatistics, Statistics
from .distributed.synced_gpus import in_step, models_in_step
from .hf_compat import ContinuousMixin, GenerationOutput, RequestStatus
from .models import device_of, in_modes_of_a_call, num_logits, without_dropout
from .sampling.copying import check_apart, clone
from .sampling.samplers import most_coupled_rows
from .types import Round

#: a window holds this many prompts a lane, at least 64: lanes run empty at its end, which should be rare
PROMPTS_PER_LANE = 16
#: rows that `generate_batch` runs together, if its `max_requests_per_batch` says nothing
LANES = 32


@dataclass(frozen=True)
class Completion:
    """The result for one prompt.

    Attributes:
        index: its place among the prompts, from 0.
        prompt_ids: its ids, without padding.
        new_ids: the new tokens, without padding; the end token, if there is one, is included as in plain `generate`.
        text: the new tokens as text, without special tokens; `None` without a tokenizer.
        statistics: counts of this row.
    """

    index: int
    prompt_ids: list[int]
    new_ids: list[int]
    text: str | None
    statistics: RowStatistics = field(repr=False)


def generate_batches(
    model: PreTrainedModel,
    prompts: Iterable,
    *,
    batch_size: int = 8,
    tokenizer: PreTrainedTokenizerBase | None = None,
    in_order: bool = True,
    window: int | None = None,
    **generate_kwargs,
) -> Generator[Completion, None, None]:
    """Generate for any number of prompts, `batch_size` of them at a time, without waiting for the longest of a batch.

    In float32 a window's rows equal, token for token, those of plain `generate` on the window as one left-padded batch: greedy
    ones, and sampled ones under `reproducible=True`. Prompts whose answers were long in earlier such calls start first.

    The iterator works in the caller's thread, when results are asked for. Closing it early leaves the models usable.
    Encoder-decoder models, others on the universal path and `guidance_scale` have one cache length for all rows. Their rows
    are decoded in batches of `batch_size` that start and end together.

    Args:
        model: the target, attached or not.
        prompts: texts, lists of messages (both need a tokenizer), lists or 1-D tensors of ids, or dicts with `input_ids`;
            read a window at a time, so they may come from a stream.
        batch_size: rows that run together.
        tokenizer: of the model; also for `stop_strings`.
        in_order: yield in the order of the prompts; if false, each row as soon as it is done.
        window: prompts in one call of `generate`, by default 16 times `batch_size`, at least 64. At its end lanes run empty
            for about as long as one row takes: 1/16 of the time by default, less if rows have similar lengths. With
            `reproducible=True`, sampled calls with a large vocabulary use fewer: each step draws noise for all of them.
        **generate_kwargs: anything else that `hf_speculative.generate` takes, such as `max_new_tokens` and `draft_model`.
            Without a source of drafts, rows are decoded plainly, with the same refill. `prefix_allowed_tokens_fn` is given
            the number of the prompt, not of a row.

    Yields:
        A `Completion` for each prompt.

    Raises:
        ValueError, TypeError: for settings at once, for a prompt before the first forward of its window.
    """
    batch_size = WholeNumber("runs no row: give 1 or more.").checked("batch_size", batch_size)
    given = None if window is None else WholeNumber("reads no prompt: give 1 or more.").checked("window", window)
    check_prompts(prompts)
    model = checks.unwrap(model, "model")
    run = _Run(model, tokenizer, batch_size, settings_of_rows(model, tokenizer, generate_kwargs), *attached_to(model))
    window = given or run.with_kept_noise(max(64, PROMPTS_PER_LANE * batch_size))
    completions = run.completions(enumerate(prompts), window)
    return _in_order(completions) if in_order else completions


def _in_order(completions: Generator[Completion, None, None]) -> Generator[Completion, None, None]:
    finished: dict[int, Completion] = {}
    following = 0
    with closing(completions):
        for completion in completions:
            finished[completion.index] = completion
            while following in finished:
                yield finished.pop(following)
                following += 1


class _Run:
    """One call of `generate_batches`; its settings are checked."""

    def __init__(self, model: PreTrainedModel, tokenizer, batch_size: int, kwargs: dict[str, Any], draft, config):
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.pad = kwargs["pad_token_id"]
        if isinstance(kwargs.get("grammar"), (list, tuple)):
            raise ValueError("`grammar` lists several, and prompts are read as they come: give one for all of them.")
        own = {name: kwargs.pop(name) for name in ("pad_token_id", "return_dict_in_generate")}
        kwargs, self.plain_generate = with_settings(model, kwargs, own), plain_generate_of(model)
        use_kernel_of(model, kwargs)
        options = prepare_rounds(model, kwargs, draft, config)
        self.kwargs = with_stop_strings(model, options)
        self.options = replace(options, rows_at_once=batch_size)
        processors, criteria = (list(self.kwargs.get(name) or []) for name in ("logits_processor", "stopping_criteria"))
        clone(processors)  # what cannot be copied is refused now
        check_apart(processors, criteria)
        draft = options.source.draft_model
        has_encoder = any(part.config.is_encoder_decoder for part in (model, draft) if part is not None)
        if has_encoder and models_in_step(options["synced_gpus"], model, draft):
            raise ValueError("encoders run once a window, of which ranks may have more or fewer: call `generate`.")

    def with_kept_noise(self, window: int) -> int:
        """`window`, or fewer prompts if the noise of a `reproducible=True` call would be drawn again for each that starts."""
        if not (self.options.config.reproducible and setting_of(self.model, self.kwargs, "do_sample")):
            return window
        return min(window, max(self.batch_size, most_coupled_rows(num_logits(self.model))))

    def completions(self, prompts: Iterator[tuple[int, Any]], window: int) -> Generator[Completion, None, None]:
        """The rows of all prompts, as they finish."""
        with closing(self._completions(prompts, window)) as found:
            yield from in_modes_of_a_call(found, self.model, self.options.source.draft_model)

    def _completions(self, prompts: Iterator[tuple[int, Any]], window: int) -> Generator[Completion, None, None]:
        if self.model.config.is_encoder_decoder:  # the encoder reads all prompts of a call at once
            window = min(window, self.batch_size)
        model, draft = self.model, self.options.source.draft_model
        # Ranks may have more windows than others.
        with in_step(models_in_step(self.options["synced_gpus"], model, draft), device_of(model)):
            while numbered := list(islice(prompts, window)):
                ids = [(index, prompt_ids(prompt, index, model, self.tokenizer)) for index, prompt in numbered]
                try:
                    yield from self._window(ids)
                except CannotRefill:  # raised before the first forward
                    window = self.batch_size
                    for first in range(0, len(ids), window):
                        yield from self._window(ids[first : first + window])

    def _window(self, prompts: list[tuple[int, list[int]]]) -> Generator[Completion, None, None]:
        new_ids: list[list[int]] = [[] for _ in prompts]
        with closing(self._rounds(prompts)) as rounds:
            for round, counts in rounds:
                self.follow(round, [prompts[row][0] for row in round.rows])
                for row, tokens, is_done in zip(round.rows, round.tokens, round.done, strict=True):
                    new_ids[row] += tokens
                    if is_done:
                        text = self.tokenizer and self.tokenizer.decode(new_ids[row], skip_special_tokens=True)
                        yield Completion(*prompts[row], new_ids[row], text, counts.rows[row])

    def follow(self, round: Round, indices: list[int]) -> None:
        """Take note of a round, of the prompts with these `indices`."""

    def _rounds(self, prompts: list[tuple[int, list[int]]]) -> Generator[tuple[Round, Statistics], None, Any]:
        """One call of the model's own `generate`, a round at a time."""
        is_left = not self.model.config.is_encoder_decoder
        input_ids, mask = padded([ids for _, ids in prompts], self.pad, left=is_left)
        device = device_of(self.model)
        # What a processor remembers of a window's first row must not reach the next window.
        processors = clone(list(self.kwargs.get("logits_processor") or []))
        given = {"input_ids": input_ids.to(device), "attention_mask": mask.to(device), "logits_processor": processors}
        if (allowed := self.kwargs.get("prefix_allowed_tokens_fn")) is not None:
            given["prefix_allowed_tokens_fn"] = lambda row, ids: allowed(prompts[row][0], ids)
        return self.plain_generate(**self.kwargs | given, custom_generate=SpeculativeDecoding(self.options).rounds)


class AttachedBatch:
    """`model.generate_batch` of a model that `attach` gave a draft: transformers' signature and results, on our caches.

    In float32 greedy tokens are those of plain `generate` for each row. Sampled ones have the same distribution; with
    `reproducible=True` they are those of plain `generate` on all prompts as one left-padded batch, under the same seed. With
    more prompts than lanes and than 2**20 / (size of the vocabulary), they are decoded in several such batches.

    As transformers' own does, it reads all settings but `max_new_tokens` from `generation_config`, takes what this leaves
    open as off, and decodes without dropout. Processors of the config that transformers drops there are applied. Of
    `continuous_batching_config` it reads `max_requests_per_batch`, by default 32, `return_logprobs` and `seed`. All others,
    `persistent_manager` and `warmup` are about transformers' paged cache, which is not used.

    Raises:
        ValueError, TypeError: before the first forward; a setting that has no meaning for rows that come and go.
    """

    def __init__(self, attached: Attached):
        self.attached = attached

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._plain)

    @property
    def _plain(self):
        return ContinuousMixin.generate_batch.__get__(self.attached.model)  # a patched class's own would come back

    def __call__(
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        record_timestamps: bool = False,
        progress_bar: bool = False,
        persistent_manager: bool = False,
        warmup: bool = True,
        **kwargs,
    ) -> dict[str, GenerationOutput]:
        model = self.attached.model
        config = generation_config or model.generation_config
        batching = continuous_batching_config or config.continuous_batching_config or ContinuousBatchingConfig()
        if kwargs.get("cache_implementation") == "paged":  # where `generate(draft_model=None)` ends
            given = (record_timestamps, progress_bar, persistent_manager, warmup)
            return self._plain(inputs, generation_config, batching, *given, **kwargs)
        if unknown := sorted(kwargs.keys() - {"max_new_tokens"}):
            raise TypeError(f"`generate_batch` reads `generation_config` alone: put {', '.join(unknown)} there.")
        if not inputs:
            return {}
        self.attached.use_kernel()
        names = [f"__child#{child}" for child in range((config.num_return_sequences or 1) - 1)] + [""]
        outputs = [GenerationOutput(f"req_{i}{name}", list(ids)) for i, ids in enumerate(inputs) for name in names]
        for output in outputs if record_timestamps else []:
            output.timestamps = []
        settings = settings_of_requests(model, config, kwargs.get("max_new_tokens"))
        if batching.seed is not None and config.do_sample:
            generator = torch.Generator(device_of(model)).manual_seed(batching.seed)
            settings["speculative_config"] = SpeculativeConfig(generator=generator)
        lanes = min(batching.max_requests_per_batch or LANES, len(outputs))
        run = _Requests(outputs, batching.return_logprobs, self.attached, lanes, settings)
        prompts = [(index, output.prompt_ids) for index, output in enumerate(outputs)]
        with logging.tqdm(total=len(outputs), disable=not progress_bar, unit="request") as bar, without_dropout(model):
            for _ in run.completions(iter(prompts), run.with_kept_noise(len(prompts))):
                bar.update()
        return {output.request_id: output for output in outputs}


class _Requests(_Run):
    """A run whose rows are noted as transformers' manager notes its requests, in `outputs`."""

    def __init__(self, outputs: list[GenerationOutput], logprobs: bool, attached: Attached, lanes: int, settings):
        kwargs = settings_of_rows(attached.model, None, settings)
        super().__init__(attached.model, None, lanes, kwargs, attached.draft_model, attached.config)
        self.outputs, self.returns_logprobs, self.last_round = outputs, logprobs, time.perf_counter()

    def follow(self, round: Round, indices: list[int]) -> None:
        now = time.perf_counter()
        logprobs: list[list[float]] = [[]] * len(indices)
        if self.returns_logprobs:
            chosen = pad_sequence([torch.tensor(tokens) for tokens in round.tokens], batch_first=True)
            scores = round.scores[:, : chosen.shape[1]].float().log_softmax(-1)
            logprobs = scores.gather(-1, chosen[..., None].to(scores.device))[..., 0].tolist()
        for index, tokens, found, is_done in zip(indices, round.tokens, logprobs, round.done, strict=True):
            output = self.outputs[index]
            if output.status == RequestStatus.PENDING:
                output.status, output.lifespan = RequestStatus.DECODING, (self.last_round, -1)
            output.generated_tokens += tokens
            output.logprobs += found[: len(tokens)]
            if output.timestamps is not None:
                output.timestamps += [now] * len(tokens)
            if is_done:
                output.status, output.lifespan = RequestStatus.FINISHED, (output.lifespan[0], now)
        self.last_round = now


def plain_manager(model: PreTrainedModel, *args, **kwargs) -> Any:
    """transformers' manager of continuous batching, of a model that `attach` gave a draft: it drafts nothing, and says so."""
    warnings.warn(
        "nothing is drafted by this manager of continuous batching: its paged cache cannot take drafts back. "
        "`model.generate_batch` drafts, and so does the server `hf-speculative serve`.",
        stacklevel=2,
    )
    return type(model).init_continuous_batching(model, *args, **kwargs)
