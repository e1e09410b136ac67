"""Compare logits through our caches with those of plain `generate`, once for each model.

The reference is steps of one token, each prepared by the model's own `prepare_inputs_for_generation`.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..interfaces import CachedModel
from ..types import Batch, uploaded
from .attention import takes_masks
from .cached_model import device_of, last_id, num_cached_of_image, without_dropout
from .early_exit import EarlyExitModel
from .inputs import Inputs, text_inputs
from .masks import is_recurrent
from .model_state import loaded_for
from .multimodal import multimodal_class_for
from .ragged import RaggedModel
from .universal import UniversalModel
from .verified_types import has_tested_modules, is_tested_multimodal, is_tested_ragged, is_tested_universal

#: errors of models that do not run through a cache of ours
DOES_NOT_RUN = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


class NoNumbers(ArithmeticError):
    """Logits of plain steps are nan. It says nothing about the model once its weights are better."""

    deviation: Any = torch.inf


#: the longest window that is tried with a text longer than it
LONGEST_WINDOW = 1024
#: columns and rows of a prompt of ids on which the universal path is tried
LONGEST_PROMPT, NUM_ROWS = 16, 2
#: texts on which untested models are tried
SEEDS = 16
Found = TypeVar("Found")


def fits_ragged(model: PreTrainedModel, is_draft: bool = False) -> bool:
    """True for a tested type; otherwise compares logits on random tokens, once a model object.

    Args:
        is_draft: the logits only have to be nearly right, so that a type is enough, quantised in whatever way.
    """
    is_tested = takes_masks(model) and is_tested_ragged(model, by_type=is_draft)
    return is_tested or ragged_deviation(model) <= tolerance(model)


def fits_early_exit(model: PreTrainedModel, exit_layer: int) -> bool:
    """True for a tested type; otherwise compares the logits of the model, cut after `exit_layer` layers, with those of plain
    steps, once a model object and layer."""
    if is_recurrent(model):  # both halves would keep their states in one cache
        return False
    if takes_masks(model) and is_tested_ragged(model):
        return True
    kind = "early exit", exit_layer
    return once(model, kind, lambda: _worst_deviation(model, lambda: _Drafting(model, exit_layer))) <= tolerance(model)


def fits_universal(model: PreTrainedModel, inputs: Inputs, is_draft: bool = False) -> bool:
    """True for a type and inputs that tests/architectures compares; otherwise compares logits on the call's own prompt: passes
    of several tokens, taken back, with plain steps of one token."""
    if is_tested_universal(model, by_type=is_draft) and not inputs.hides_columns:
        return True
    # Of a type whose ragged cache is right, the modules are to blame, whatever the prompt of this call may show of it.
    if not is_draft and is_tested_ragged(model, by_type=True) and not has_tested_modules(model):
        return ragged_deviation(model) <= tolerance(model)
    return universal_deviation(model, inputs, is_draft) <= tolerance(model)


def fits_multimodal(model: PreTrainedModel, inputs: Inputs, is_draft: bool = False) -> bool:
    """Whether a `MultimodalModel` is right: known for a tested type; else compares logits on the call's own prompt."""
    if is_tested_universal(model, by_type=is_draft):
        return is_tested_multimodal(model)
    return universal_deviation(model, inputs, is_draft, multimodal_class_for(inputs)) <= tolerance(model)


def tolerance(model: PreTrainedModel) -> float:
    """The largest distance of logits by rounding alone, in standard deviations of the logits.

    In half precision, types that are exact in float32 are up to 0.2 apart: SmolLM2-135M in bfloat16.
    """
    if model.dtype == torch.float32:
        return 1e-3
    is_known = is_tested_ragged(model, by_type=True) or is_tested_universal(model, by_type=True)
    return 0.5 if is_known else 5e-2


def ragged_deviation(model: PreTrainedModel) -> float:
    """The distance of the ragged cache's logits from plain steps', in standard deviations; infinite if it fails."""
    return once(model, "ragged", lambda: _worst_deviation(model, lambda: RaggedModel(model)))


def once(model: PreTrainedModel, what: Hashable, trial: Callable[[], Found]) -> Found:
    """What `trial` finds, without gradients and dropout; it is run once for each model object."""
    known, key = loaded_for(model), (once, what)
    if key not in known:
        try:
            with without_dropout(model), torch.no_grad():
                known[key] = trial()
        except NoNumbers as found:
            return found.deviation
    return known[key]


def universal_deviation(
    model: PreTrainedModel, inputs: Inputs, is_draft: bool, make_cached: Callable[..., CachedModel] = UniversalModel
) -> float:
    """The same for the universal path, or a `MultimodalModel`, on the prompt of a call, against plain steps.

    Asked once a model object and kind of inputs; `inputs` are left as they were. What plain decoding raises about its inputs
    is passed on, a draft just does not fit.
    """

    def trial() -> float:
        tried = _shortened(model, inputs)
        if not is_draft:
            UniversalModel(model, tried).logits(_prompts(tried), ahead=0, num_last=1)
        return _worst_deviation(model, lambda: make_cached(model, tried, is_draft), tried, is_draft)

    kind = (make_cached, *inputs.others, inputs.hides_columns, num_cached_of_image(model, inputs.cache) > 0)
    return once(model, kind, trial)


def _shortened(model: PreTrainedModel, inputs: Inputs) -> Inputs:
    """A long prompt of ids costs time, and near the model's last position there is no room to try; one row says too little."""
    if model.config.is_encoder_decoder:
        kwargs = {name: value for name, value in inputs.model_kwargs.items() if not name.startswith("decoder_")}
        ids = inputs.input_ids[:, :1]
        if inputs.hides_columns:
            ids = ids.expand(-1, 2)
            kwargs["decoder_attention_mask"] = torch.tensor([0, 1], device=ids.device).expand(len(ids), -1)
        return Inputs(ids, inputs.generation_config, kwargs)
    if inputs.others or inputs.input_ids.shape[1] == 0 or num_cached_of_image(model, inputs.cache):
        return inputs
    ids = inputs.input_ids[:NUM_ROWS, -LONGEST_PROMPT:].clamp(max=last_id(model))
    ids = ids.expand(NUM_ROWS, -1) if len(ids) == 1 else ids
    return text_inputs(model, Batch(ids, [0] * len(ids), max_length=LONGEST_PROMPT + 1))


class _Drafting(EarlyExitModel):
    """Feed tokens to the first layers one at a time, as a drafter does, before the other layers see them."""

    def logits(self, batch: Batch, ahead: int, num_last: int) -> torch.Tensor:
        for i in range(ahead):
            self.exit_logits(batch, ahead=i)
        return super().logits(batch, ahead, num_last)


def _worst_deviation(
    model: PreTrainedModel, make_cached: Callable[[], CachedModel], inputs: Inputs | None = None, is_draft: bool = False
) -> float:
    """The largest over random tokens; infinite for a model that does not run through a cache of ours.

    Args:
        inputs: of the call; else left-padded prompts longer than the model's windows.
    """
    num_seeds = 1 if has_tested_modules(model) else SEEDS  # layers that quantise their inputs may be right on some
    try:
        return max(_deviation_from_steps(model, make_cached, inputs, is_draft, seed) for seed in range(num_seeds))
    except torch.OutOfMemoryError:
        raise
    except DOES_NOT_RUN:
        return torch.inf


def _random_inputs(model: PreTrainedModel, seed: int) -> Inputs:
    """Prompts that are longer than the model's windows."""
    config = model.config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size", "window_size")]
    width = 6 + max([window for window in windows if window <= LONGEST_WINDOW], default=0)
    prompts = random_tokens(model, 3, width, seed).to(device_of(model))
    return text_inputs(model, Batch(prompts, [0, 1, 3], max_length=width + 8))


def _deviation_from_steps(
    model: PreTrainedModel, make_cached: Callable[[], CachedModel], inputs: Inputs | None, is_draft: bool, seed: int
) -> float:
    """Of passes over several tokens, some of which are taken back, from steps of one token."""
    inputs = inputs or _random_inputs(model, seed)
    batch, num_rows = _prompts(inputs), len(inputs.input_ids)
    kept, taken_back = random_tokens(model, 2 * num_rows, 5, seed).to(batch.tokens.device).view(2, num_rows, 5)
    stepped = UniversalModel(model, inputs, is_draft)
    steps = [stepped.logits(batch, ahead=0, num_last=1)]
    for i in range(kept.shape[1]):
        extend(batch, kept[:, i : i + 1])
        steps.append(stepped.logits(batch, ahead=0, num_last=1))
    plain = torch.cat(steps, 1)
    if plain.isnan().any():
        raise NoNumbers
    cached, batch = make_cached(), _prompts(inputs)
    cached.logits(batch, ahead=0, num_last=1)
    extend(batch, kept[:, :1])
    batch.put(torch.cat([kept[:, 1:2], taken_back[:, :2]], 1))
    first = cached.logits(batch, ahead=3, num_last=4)[:, :2]
    # Rows move on by 2, 1 and 0 tokens; what else they were fed is forgotten.
    moves = [2 - row % 3 for row in range(num_rows)]
    extend(batch, kept[:, 1:3], moves)
    cached.rollback(batch)
    batch.put(torch.stack([kept[row, 1 + move : 3 + move] for row, move in enumerate(moves)]))
    second = cached.logits(batch, ahead=2, num_last=3)
    expected = torch.stack([plain[row, [1, 2, *range(1 + move, 4 + move)]] for row, move in enumerate(moves)])
    found, expected = torch.cat([first, second], 1).float(), expected.float()
    deviation = ((found - expected).abs().max() / expected.std()).item() if found.shape == expected.shape else torch.nan
    return torch.inf if math.isnan(deviation) else deviation


def random_tokens(model: PreTrainedModel, num_rows: int, width: int, seed: int) -> Tensor:
    """`(num_rows, width)` ids of the model's vocabulary, on the CPU."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    return torch.randint(vocab_size, (num_rows, width), generator=torch.Generator().manual_seed(seed))


def _prompts(inputs: Inputs) -> Batch:
    return Batch(inputs.input_ids, inputs.prompt.padding, inputs.input_ids.shape[1] + 8)


def extend(batch: Batch, tokens: Tensor, by: list[int] | None = None) -> None:
    """Append the first `by[i]` of `tokens (batch, n)` to row i; default: all."""
    by = by or [tokens.shape[1]] * len(batch.rows)
    batch.put(tokens)
    batch.lengths = batch.lengths + uploaded(by, batch.lengths.device)
    batch.host_lengths = [length + num for length, num in zip(batch.host_lengths, by, strict=True)]
