"""Prepare one request as `generate` would alone, to run as a row among others, and log-probabilities of its tokens."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..call import checks, input_checks
from ..call.attached import plain_generate_of
from ..call.parts import make_sampler
from ..call.preparation import with_stop_strings
from ..call.statistics import RowStatistics
from ..grammar.processor import with_grammar
from ..hf_compat import CACHE
from ..models import Inputs, device_of
from ..sampling.logits_processors import Processors
from ..sampling.samplers import ProcessedSampler
from ..sampling.stopping import CriteriaStopping
from ..types import Batch, Tree

#: takes new tokens; and takes the end, `None` or the error that it came to
Receive: TypeAlias = Callable[[list[int]], None]
Finish: TypeAlias = Callable[[BaseException | None], None]
#: positions of a prompt in one pass
CHUNK = 256


class Logprob(NamedTuple):
    """The log-probability of a token, and the likeliest tokens at its position with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


def logprobs_of(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[Logprob]:
    """Log-probabilities of `tokens`, one for each row of `logits (n, vocab)`, before any processor."""
    scores = logits.float().log_softmax(-1)
    own = scores.gather(1, torch.tensor([tokens], device=scores.device).T)[:, 0].tolist()
    values, ids = scores.topk(num_top, -1)
    likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [Logprob(*found) for found in zip(tokens, own, likeliest, strict=True)]


@torch.no_grad()
def logprobs_of_prompt(model: PreTrainedModel, prompt: Sequence[int], num_top: int) -> list[Logprob]:
    """Log-probabilities of a prompt's tokens except the first. Logits of at most `CHUNK` positions are in memory."""
    ids = torch.tensor([list(prompt)], device=device_of(model))
    cache, found = DynamicCache(config=model.config), []
    for start in range(0, len(prompt) - 1, CHUNK):
        following = prompt[start + 1 : start + 1 + CHUNK]
        columns = ids[:, start : start + len(following)]
        logits = model(input_ids=columns, **{CACHE: cache}, use_cache=True).logits[0]
        found += logprobs_of(logits, following, num_top)
    return found


def num_before(model: PreTrainedModel, prompt: Sequence[int]) -> int:
    """Tokens before an answer: those of the prompt, unless an encoder reads them."""
    return 0 if model.config.is_encoder_decoder else len(prompt)


def check_room(num_before: int, num_new: int, max_length: int) -> None:
    """Refuse an answer that does not fit behind its prompt.

    Raises:
        ValueError: both are longer than `max_length`.
    """
    if num_before + num_new > max_length:
        asked = f"the prompt has {num_before} tokens and {num_new} new ones are asked for, more than the {max_length} that fit"
        raise ValueError(f"{asked}: shorten the prompt, or give a smaller `max_tokens`.")


class Run:
    """What a reply gets its tokens from.

    Args:
        receive: takes new tokens.

    Attributes:
        logprobs: of its tokens, where they are asked for.
        statistics: counts of its drafts.
        num_cached: tokens of the prompt that were cached, since another row began with them.
        is_cancelled: its client is gone.
    """

    def __init__(self, receive: Receive):
        self.receive = receive
        self.logprobs: list[Logprob] = []
        self.statistics, self.num_cached = RowStatistics(), 0
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel it, from any thread."""
        self.is_cancelled = True


class Request(Run):
    """A prompt with its own sampler and stopping criteria, which see its row as the only one of a call.

    Sampled requests are coupled to plain `generate`'s noise: under a seed, the tokens are those of `generate` alone,
    independently of other requests and of drafts.

    Args:
        inputs: of the call, prepared by the target's own `generate`.
        sampler, stopping: of a call with this one row.
        receive: takes new tokens, on the engine's thread.
        finish: is called once at the end, with `None` or the error that ended it.

    Attributes:
        ids: the prompt.
        guide: of its grammar, if it has one.
        tokens: the new tokens so far.
        num_top: the number of likeliest tokens whose log-probabilities are kept beside each token's own; `None`: keep none.
        max_length: the most tokens of prompt and answer.
        error: what went wrong with it alone; its row ends with the round.
    """

    def __init__(self, inputs: Inputs, sampler: ProcessedSampler, stopping: CriteriaStopping, receive: Receive, finish: Finish):
        assert stopping.max_length is not None  # transformers' generate always sets one
        self.inputs, self.sampler, self.stopping, self.max_length = inputs, sampler, stopping, stopping.max_length
        super().__init__(receive)
        self.finish, self.ids = finish, inputs.input_ids[0].tolist()
        self.guide = sampler.processors.guides([self.ids])(0)
        self.tokens: list[int] = []
        self.num_top: int | None = None
        self.error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether its row ends regardless of its stopping criteria."""
        return self.is_cancelled or self.error is not None

    def own(self, batch: Batch, lane: int, ends_round: bool = False) -> Batch:
        """View row `lane` of `batch` as the only row of a call, without padding. Memory is shared.

        The accepted path of a tree is included where `ends_round`; lanes may have changed since.
        """
        pad = batch.host_padding[lane]
        own = copy.copy(batch)
        own.prompt_width, own.max_length, own.max_position = len(self.ids), self.max_length, self.max_length - 1
        own.tokens, own.rows = batch.tokens[lane : lane + 1, pad:], [0]
        own.lengths, own.host_lengths = batch.lengths[lane : lane + 1] - pad, [batch.host_lengths[lane] - pad]
        own.padding, own.host_padding = torch.zeros_like(own.lengths), [0]
        own.history, own.waiting, own.ends = [batch.history[lane]], None, frozenset(self.stopping.eos)
        if batch.tree is not None:
            own.tree = Tree(batch.tree.parents[lane : lane + 1], batch.tree.depth)
        own.path = own.host_path = None
        if ends_round and batch.path is not None and batch.host_path is not None:
            own.path, own.host_path = batch.path[lane : lane + 1], [batch.host_path[lane]]
        return own


def prepare_request(
    engine, prompt: Sequence[int], settings: dict[str, Any], seed: int | None, receive: Receive, finish: Finish
) -> Request:
    """Make a request, checked like a call of `generate`; nothing runs yet.

    Args:
        engine: what runs it: its model, options of drafts and limit count.
        prompt: its ids.
        settings: keywords of `generate`: `generation_config`, `max_new_tokens`, images, ...
        seed: of a sampled answer; `None`: a random one.

    Raises:
        ValueError, TypeError: a call of `generate` would refuse it.
    """
    model, options = engine.model, engine.options
    if not prompt:
        raise ValueError("the prompt is empty: it needs at least one token.")
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise ValueError(f"`seed={seed}` is none of torch's: give a whole number of 64 bits.")
    input_ids = torch.tensor([list(prompt)], device=device_of(model))
    input_checks.check_known_ids(model, list(prompt), "the prompt")
    grammar, settings = settings.get("grammar"), {n: value for n, value in settings.items() if n != "grammar"}
    options = replace(options, generate_kwargs=with_grammar(model, settings, grammar, options.config.tokenizer))

    def prepared(
        model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor=None, **model_kwargs
    ) -> Request:
        inputs = Inputs(input_ids, generation_config, model_kwargs)
        stopping = CriteriaStopping(stopping_criteria, 1)
        checks.check_generation(options, model, input_ids, generation_config, stopping.rows_may_differ)
        width, wanted = input_ids.shape[1], stopping.max_length or 0
        check_room(width, wanted - width, engine.max_length)
        processors = Processors(logits_processor, 1)
        if processors.keeps_rows_together:
            raise ValueError("`guidance_scale` keeps rows together, which requests are not: leave it out.")
        if processors.memories.lookahead_unsupported_reason is not None:
            raise processors.memories.lookahead_unsupported_reason
        generator = torch.Generator(input_ids.device)
        generator.manual_seed(generator.seed() if seed is None else seed)
        config = replace(options.config, generator=generator)
        sampler = make_sampler(config, model, Batch(input_ids, [0], wanted), processors, generation_config)
        sampler.keeps_draft_probs = False
        return Request(inputs, sampler, stopping, receive, finish)

    kwargs = with_stop_strings(model, options) | {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    return plain_generate_of(model)(**kwargs, custom_generate=prepared)
