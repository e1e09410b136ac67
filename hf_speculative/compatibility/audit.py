"""The function `audit`: where two texts of one model differ, and whether rounding explains it."""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.prompts import prompt_ids
from ..models import NUM_COLUMNS, RaggedModel, choose, device_of, without_dropout
from ..models.shallow import decoder_layers
from ..tokenizers.chat import as_chat
from ..types import Batch

#: ids of tokens
Ids: TypeAlias = Sequence[int]
#: a function that returns a copy of a model in float64
Exact: TypeAlias = Callable[[], PreTrainedModel]
#: two roundings of two logits each, and as much again for passes of another shape
MOST_ROUNDINGS = 4
#: a layer that is further from float64 than this many times a fresh pass's own rounding is wrong
MOST_OF_LAYER = 16


@dataclass(frozen=True)
class Audit:
    """The first difference between two texts of a model.

    Attributes:
        position: of the new token that differs, from 0.
        tokens: that one of each text.
        logits: of these two, by one fresh pass over the text before them, in the model's number format.
        lead: of the first over the second in float64.
        behind: how far the worse of them is behind the best token in float64.
        rounding: the largest distance of any logit of the fresh pass from float64.
        ulps: the distance of the two logits in units in the last place of the number format.
        layer: the first decoder layer whose output in passes over draft tokens differs by more than rounding; `None`: none.
    """

    position: int
    tokens: tuple[int, int]
    logits: tuple[float, float]
    lead: float
    behind: float
    rounding: float
    ulps: float
    layer: str | None = None

    @property
    def is_tie(self) -> bool:
        """Rounding alone can have chosen either token."""
        return self.layer is None and self.behind <= MOST_ROUNDINGS * self.rounding

    def __str__(self) -> str:
        first, second = self.tokens
        texts = f"new token {self.position} is {first} in one text and {second} in the other"
        apart = f"{self.logits[0]:.6g} and {self.logits[1]:.6g}, {self.ulps:.1f} units in the last place apart"
        facts = f"{texts}: logits {apart}, and {self.lead:+.3g} in float64"
        if self.layer is not None:
            return f"not rounding, a bug: {facts}. Passes over draft tokens go wrong in {self.layer}."
        if self.is_tie:
            return f"a tie within rounding: {facts}, where rounding moves a logit by up to {self.rounding:.2g}."
        right = "Passes over draft tokens are right here: compare prompts, chat templates, processors and seeds of the two."
        return f"not rounding: {facts}, where rounding moves a logit by {self.rounding:.2g} at most. {right}"


def audit(model: PreTrainedModel, prompt: Ids, a: Ids, b: Ids) -> Audit | None:
    """Explain where two greedy texts of `model` first differ, from any two systems. `None`: they do not.

    The model reads the text before the difference in its own number format, and a copy of it in float64, at 8 bytes a weight.
    Where the two tokens are no tie, layers of a pass over draft tokens are compared with those of a fresh pass.

    Args:
        prompt: its ids, without padding.
        a, b: the new tokens of each text; the end of one inside the other is no difference.

    Raises:
        ValueError: an empty prompt, or ids past the model's vocabulary.
    """
    model = checks.unwrap(model, "model")
    return _audit(model, _exact(model), prompt, a, b)


def audit_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Iterable[Sequence[Any]], raw: bool = False
) -> Iterator[Audit | None]:
    """The same for each row, a prompt as `generate_batches` takes it and two texts, with one copy of the model.

    Args:
        raw: a prompt that is a text is no message of a user.
    """
    exact = _exact(model)
    for index, (prompt, *texts) in enumerate(rows):
        ids = prompt_ids(as_chat(prompt, tokenizer, raw), index, model, tokenizer)
        yield _audit(model, exact, ids, *tokenizer(texts, add_special_tokens=False)["input_ids"])


def _exact(model: PreTrainedModel) -> Exact:
    """A function that returns a copy in float64, made in its first call."""
    return functools.cache(lambda: copy.deepcopy(model).double())


@torch.no_grad()
def _audit(model: PreTrainedModel, exact: Exact, prompt: Ids, a: Ids, b: Ids) -> Audit | None:
    position = next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), None)
    if not prompt:
        raise ValueError("`prompt` is empty: give the ids that both texts go on from.")
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    if (largest := max(*prompt, *a, *b, 0)) >= vocab_size:
        raise ValueError(f"id {largest} is past the {vocab_size} of the model's vocabulary: are these another model's?")
    if position is None:
        return None
    ids = torch.tensor([[*prompt, *a[:position]]], device=device_of(model))
    with without_dropout(model):
        fresh, layers = _read(model, ids)
        in_float64, exact_layers = _read(exact(), ids)
        tokens = (a[position], b[position])
        logits, leads = fresh[list(tokens)], in_float64[list(tokens)]
        lead, behind = (leads[0] - leads[1]).item(), (in_float64.max() - leads.min()).item()
        number = torch.finfo(model.dtype)
        ulp = number.eps * 2 ** logits.abs().max().clamp(min=number.tiny).log2().floor().item()
        rounding, ulps = (fresh - in_float64).abs().max().item(), (logits[0] - logits[1]).abs().item() / ulp
        found = Audit(position, tokens, (logits[0].item(), logits[1].item()), lead, behind, rounding, ulps)
        return found if found.is_tie else replace(found, layer=_wrong_layer(model, ids, layers, exact_layers))


def _read(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Float64 logits after the last of `ids (1, n)`, by a pass without a cache, and what layers give for the last ones."""
    with _states(model) as states:
        logits = model(input_ids=ids, use_cache=False).logits[0, -1].double()
    return logits, states


def _wrong_layer(model: PreTrainedModel, ids: Tensor, fresh: list[Tensor], exact: list[Tensor]) -> str | None:
    """The first layer whose output, in a pass over draft tokens at the end of `ids`, is further off than rounding explains."""
    num_ahead = min(NUM_COLUMNS, ids.shape[1]) - 1
    if num_ahead == 0 or choose(model).name != "ragged":
        return None
    before = ids.shape[1] - num_ahead
    with _states(model) as states:
        cached, batch = RaggedModel(model), Batch(ids[:, :before], [0], max_length=ids.shape[1] + 1)
        cached.prefill(batch)
        batch.put(ids[:, before:])
        cached.logits(batch, ahead=num_ahead, num_last=1)
    path = decoder_layers(model)
    for index, (found, one, right) in enumerate(zip(states, fresh, exact, strict=True)):
        rounding = (one - right).abs().max() + torch.finfo(model.dtype).eps * right.abs().max()
        if (found - right).abs().max() > MOST_OF_LAYER * rounding:
            return f"{path}.{index}"
    return None


@contextmanager
def _states(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """What each decoder layer of `model` gives in its last pass for the last columns, in float64."""
    path = decoder_layers(model)
    layers = [] if path is None else list(model.get_submodule(path).children())
    last = [torch.zeros(1)] * len(layers)

    def keep(index: int, layer, args, output) -> None:
        states = output[0] if isinstance(output, tuple) else output
        last[index] = states[0, -NUM_COLUMNS:].double()

    with ExitStack() as hooks:
        for index, layer in enumerate(layers):
            hooks.enter_context(layer.register_forward_hook(functools.partial(keep, index)))
        yield last
