"""`synced_gpus`: ranks with work of their own, but with forwards that take all of them.

FSDP and ZeRO-3 keep a share of the weights on each rank, so that each forward gathers them from all, and a rank that runs one
forward more than the others waits for ever. Plain `generate` asks once a step whether anybody is still at work, and whoever is
not runs the forward for nothing. Under speculation ranks differ in more: in how many forwards of the target they need, in how
many of the draft, and in their order.

So before each forward of a sharded model the ranks tell each other which one they want next, and all run the same one: the
draft's as long as anybody wants one, else the target's. Who wants another, or none any more, runs it on a token of filler and
asks again. That is one small all-reduce a forward. The question is asked by a hook on the model, so that every forward comes
by, whoever runs it: rounds, prompts, probes.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import distributed
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import BaseModelOutput

from ..models import are_several, device_of, has_sharded_weights, is_sharded, is_staged


class Turnstile(AbstractContextManager):
    """Keeps the ranks in step while it is open, and at its end until all of them are there.

    An error outside of a forward does not hold up the others: this rank goes on for them, and raises it once they are done.

    Args:
        models: those whose forwards take all ranks, the target first; alike on each rank.
        device: of the prompts, as in plain `generate`; weights may be offloaded to another.

    Attributes:
        is_filling: a forward of this rank is under way for the others' sake.
        is_joined: all ranks are at work on one thing, and an error now leaves them in the middle of it.
    """

    is_filling = is_joined = False

    def __init__(self, models: list[PreTrainedModel], device: torch.device):
        self.models, self.device = models, device

    def __enter__(self) -> Turnstile:
        self.hooks = []
        for index, model in enumerate(self.models):
            hook = functools.partial(self._wait_for_turn, index)
            # Before those of FSDP, which gather.
            self.hooks.append(model.register_forward_pre_hook(hook, prepend=True))
            self.hooks.append(model.register_forward_hook(self._leave))
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            # Not for Ctrl-C: who interrupts wants out.
            if not self.is_joined and (error is None or isinstance(error, (Exception, GeneratorExit))):
                self._wait_for_turn(None)
        finally:
            for hook in self.hooks:
                hook.remove()

    @torch.no_grad()
    def _wait_for_turn(self, wanted: int | None, *call) -> None:
        """Return when it is the turn of model `wanted`; for `None`, when no rank wants any."""
        if self.is_filling:
            return
        self.is_filling = True
        try:
            while (turn := self._next(wanted)) != wanted:
                assert turn is not None  # this rank wants one
                self._fill(self.models[turn])
        finally:
            self.is_filling = False
        self.is_joined = wanted is not None

    def _leave(self, *call) -> None:
        if not self.is_filling:
            self.is_joined = False

    def _next(self, wanted: int | None) -> int | None:
        """Which model all ranks run now; `None` if no rank wants any."""
        wishes = torch.tensor([float(index == wanted) for index in range(len(self.models))], device=self.device)
        self.is_joined = True
        try:
            distributed.all_reduce(wishes)
        except RuntimeError as error:
            raise RuntimeError(
                "waited for the other ranks, and not all of them came: under `synced_gpus` each rank has to call `generate` "
                "as often as the others, with or without a draft like them. One of them may have raised an error."
            ) from error
        self.is_joined = False
        return max((index for index, count in enumerate(wishes.tolist()) if count), default=None)

    def _fill(self, model: PreTrainedModel) -> None:
        """A forward for nothing."""
        self.is_joined = True
        token = torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
        if not model.config.is_encoder_decoder:
            model(input_ids=token, use_cache=False)
        else:  # without its encoder, which ran before the first step
            size = model.get_encoder().config.hidden_size
            encoded = BaseModelOutput(torch.zeros(1, 1, size, device=token.device, dtype=model.dtype))
            model(decoder_input_ids=token, encoder_outputs=encoded, use_cache=False)
        self.is_joined = False


def in_step(
    synced_gpus: bool | None, model: PreTrainedModel, draft: PreTrainedModel | None, device: torch.device
) -> AbstractContextManager:
    """What keeps the ranks of a call in step; nothing where each rank runs on its own.

    Args:
        synced_gpus: as given; by default where a model's weights are sharded.
        device: of the prompts.
    """
    models = models_in_step(synced_gpus, model, draft)
    return Turnstile(models, device) if models else nullcontext()


def check_synced(
    synced_gpus: bool | None, model: PreTrainedModel, draft: PreTrainedModel | None, part_of_target: str | None
) -> None:
    """What a call can do whose ranks wait for each other.

    Args:
        part_of_target: the option whose drafts run parts of the target on their own, if one of the call does.

    Raises:
        ValueError: there are no other ranks, or drafts run parts of the target on their own.
    """
    if synced_gpus and not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            "`synced_gpus=True` waits for other processes, and torch.distributed is not initialised: start them by torchrun "
            "or accelerate, or leave it out."
        )
    models = models_in_step(synced_gpus, model, draft)
    if part_of_target is not None and (is_staged(model) or models):
        raise ValueError(
            f"`{part_of_target}` drafts with parts of the target, and ranks that share weights keep step by whole forwards: "
            "use a draft model of its own or `prompt_lookup_num_tokens=`, or leave it out for plain decoding.",
        )
    if synced_gpus is False and models:
        warnings.warn(
            "`synced_gpus=False`, but FSDP2 has sharded a model of this call: the ranks are kept in step. Pass "
            "`synced_gpus=True`.",
            stacklevel=2,
        )


def models_in_step(
    synced_gpus: bool | None, model: PreTrainedModel, draft: PreTrainedModel | None
) -> list[PreTrainedModel]:
    """The models of a call whose forwards take all ranks."""
    if not are_several():
        return []
    # Seq2SeqTrainer says False of models that accelerate has sharded by FSDP2, with which ranks would wait for ever.
    if synced_gpus is False and not any(has_sharded_weights(part) for part in (model, draft) if part is not None):
        return []
    is_shared = bool(synced_gpus) or is_sharded(model) or is_deepspeed_zero3_enabled()
    models = [model] if is_shared else []
    if draft is not None and draft is not model and is_sharded(draft):
        models.append(draft)
    return models
