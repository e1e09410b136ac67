"""Does a model give the same logits through a cache of ours as without one? Asked once a model, by running it."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..types import Batch
from .cached_model import CachedModel, device_of, without_dropout
from .early_exit import EarlyExitModel
from .inputs import Inputs
from .ragged import RaggedModel
from .universal import UniversalModel

#: model types that tests/test_models.py compares with plain `generate`, so that none needs to be asked
TESTED_TYPES = frozenset(
    {
        "cohere",
        "gemma",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "stablelm",
        "starcoder2",
    }
)
#: what a model raises that does not run through a cache of ours at all
DOES_NOT_RUN = (
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    AssertionError,
    NotImplementedError,
)
#: windows up to this long are tried with a text that is longer
LONGEST_WINDOW = 1024
_fits_ragged: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_fits_universal: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_fits_early_exit: WeakKeyDictionary[PreTrainedModel, dict[int, bool]] = WeakKeyDictionary()


def fits_ragged(model: PreTrainedModel) -> bool:
    """True for a tested type; otherwise compares logits on random tokens, once a model object."""
    if model.config.model_type in TESTED_TYPES:
        return True
    if model not in _fits_ragged:
        with without_dropout(model):
            _fits_ragged[model] = _same_logits(model)
    return _fits_ragged[model]


def fits_early_exit(model: PreTrainedModel, exit_layer: int) -> bool:
    """True for a tested type; otherwise compares the logits of the model, cut after `exit_layer` layers, with those of one
    forward, once a model object and layer."""
    if model.config.model_type in TESTED_TYPES:
        return True
    answers = _fits_early_exit.setdefault(model, {})
    if exit_layer not in answers:
        with without_dropout(model):
            answers[exit_layer] = _same_logits(model, lambda model: _Drafting(model, exit_layer))
    return answers[exit_layer]


class _Drafting(EarlyExitModel):
    """Pushes tokens through the first layers one at a time, as a drafter does, before the rest sees them."""

    def logits(self, batch: Batch, ahead: int, num_last: int) -> torch.Tensor:
        for i in range(ahead):
            self.exit_logits(batch, ahead=i)
        return super().logits(batch, ahead, num_last)


@torch.no_grad()
def _same_logits(model: PreTrainedModel, make_cached: Callable[[PreTrainedModel], CachedModel] = RaggedModel) -> bool:
    config = model.config.get_text_config(decoder=True)
    windows = [getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size", "window_size")]
    width = 6 + max([window for window in windows if window <= LONGEST_WINDOW], default=0)
    generator = torch.Generator().manual_seed(0)
    device = device_of(model)
    tokens = torch.randint(config.vocab_size, (3, width + 3), generator=generator).to(device)
    padding = [0, 1, 3]
    batch = Batch(tokens[:, :width], padding, max_length=width + 6)
    try:
        cached = make_cached(model)
        cached.prefill(batch)
        # Rows move on by 1, 0 and 2 tokens, after three that are all forgotten again.
        batch.put(tokens[:, width:])
        cached.logits(batch, ahead=3, num_last=1)
        batch.lengths += torch.tensor([1, 0, 2], device=device)
        batch.host_lengths = [width + 1, width, width + 2]
        cached.rollback(batch)
        found = cached.logits(batch, ahead=1, num_last=2)
        # Compared with what plain `generate` computes: the padded batch, as its mask and positions describe it.
        mask = torch.arange(width + 3, device=device) >= batch.padding[:, None]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        fresh = model(batch.tokens[:, : width + 3], attention_mask=mask.long(), position_ids=positions).logits
        return all(
            _close(found[row], fresh[row, length - 1 : length + 1]) for row, length in enumerate(batch.host_lengths)
        )
    except torch.OutOfMemoryError:
        raise
    except DOES_NOT_RUN:
        return False


def fits_universal(model: PreTrainedModel, inputs: Inputs, is_draft: bool = False) -> bool:
    """Compares logits on the call's own prompt: passes of several tokens, taken back, with plain steps of one token.

    Asked once a model object; `inputs` are left as they were. What plain decoding raises about its inputs is passed on, a draft
    just does not fit.
    """
    if model not in _fits_universal:
        with without_dropout(model), torch.no_grad():
            _fits_universal[model] = _same_as_steps(model, inputs, is_draft)
    return _fits_universal[model]


def _same_as_steps(model: PreTrainedModel, inputs: Inputs, is_draft: bool) -> bool:
    width, num_rows = inputs.input_ids.shape[1], inputs.input_ids.shape[0]
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(0)
    # Two kept, two taken back, then three others: x0 x1 (y y) x2 x3 x4.
    kept, taken_back = torch.randint(vocab_size, (2, num_rows, 5), generator=generator).to(inputs.input_ids.device)
    plain: list[Tensor] = []
    try:
        cached, batch = UniversalModel(model, inputs, is_draft), Batch(inputs.input_ids, [0] * num_rows, width + 8)
        plain.append(cached.logits(batch, ahead=0, num_last=1))
        for i in range(5):
            _extend(batch, kept[:, i : i + 1])
            plain.append(cached.logits(batch, ahead=0, num_last=1))
        cached, batch = UniversalModel(model, inputs, is_draft), Batch(inputs.input_ids, [0] * num_rows, width + 8)
        cached.logits(batch, ahead=0, num_last=1)
        _extend(batch, kept[:, :1])
        batch.put(torch.cat([kept[:, 1:2], taken_back[:, :2]], 1))
        first = cached.logits(batch, ahead=3, num_last=4)[:, :2]
        _extend(batch, kept[:, 1:3])
        cached.rollback(batch)
        batch.put(kept[:, 3:])
        second = cached.logits(batch, ahead=2, num_last=3)
    except torch.OutOfMemoryError:
        raise
    except DOES_NOT_RUN:
        if not plain and not is_draft:
            raise
        return False
    return _close(torch.cat([first, second], 1), torch.cat(plain[1:], 1))


def _extend(batch: Batch, tokens: Tensor) -> None:
    batch.put(tokens)
    batch.lengths = batch.lengths + tokens.shape[1]
    batch.host_lengths = [length + tokens.shape[1] for length in batch.host_lengths]


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    expected = expected.float()
    return torch.allclose(found.float(), expected, rtol=0, atol=tolerance * expected.std().item())
