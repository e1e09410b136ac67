"""Does a model give the same logits through the ragged cache as in one forward? Asked once a model, by running it."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ..types import Batch
from .cached_model import CachedModel, without_dropout
from .early_exit import EarlyExitModel
from .ragged import RaggedModel

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
#: windows up to this long are tried with a text that is longer
LONGEST_WINDOW = 1024
_answers: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_exit_answers: WeakKeyDictionary[PreTrainedModel, dict[int, bool]] = WeakKeyDictionary()


def fits_ragged(model: PreTrainedModel) -> bool:
    """True for a tested type; otherwise compares logits on random tokens, once a model object."""
    if model.config.model_type in TESTED_TYPES:
        return True
    if model not in _answers:
        with without_dropout(model):
            _answers[model] = _same_logits(model)
    return _answers[model]


def fits_early_exit(model: PreTrainedModel, exit_layer: int) -> bool:
    """True for a tested type; otherwise compares the logits of the model, cut after `exit_layer` layers, with those of one
    forward, once a model object and layer."""
    if model.config.model_type in TESTED_TYPES:
        return True
    answers = _exit_answers.setdefault(model, {})
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
    tokens = torch.randint(config.vocab_size, (3, width + 3), generator=generator).to(model.device)
    padding = [0, 1, 3]
    batch = Batch(tokens[:, :width], padding, max_length=width + 6)
    try:
        cached = make_cached(model)
        cached.prefill(batch)
        # Rows move on by 1, 0 and 2 tokens, after three that are all forgotten again.
        batch.put(tokens[:, width:])
        cached.logits(batch, ahead=3, num_last=1)
        batch.lengths += torch.tensor([1, 0, 2], device=model.device)
        batch.host_lengths = [width + 1, width, width + 2]
        cached.rollback(batch)
        found = cached.logits(batch, ahead=1, num_last=2)
        for row, (pad, length) in enumerate(zip(padding, batch.host_lengths, strict=True)):
            fresh = model(batch.tokens[row : row + 1, pad : length + 1]).logits[0, -2:].float()
            tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
            if not torch.allclose(found[row].float(), fresh, rtol=0, atol=tolerance * fresh.std().item()):
                return False
        return True
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, NotImplementedError):
        return False  # it does not run through this cache at all; the caller refuses the model by name
