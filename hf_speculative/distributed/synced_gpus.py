"""`synced_gpus`: ranks with their own prompts, whose forwards need all ranks.

FSDP and ZeRO-3 keep a share of the weights on each rank, and each forward gathers them from all. So a rank that runs one
forward more than the others waits for ever. Plain `generate` asks once a step whether any rank is still at work, and ranks that
are done run idle forwards. With speculation ranks differ in more: in how many forwards of the target and of the draft they
need, and in their order.

So before each forward of a sharded model the ranks tell each other which one they want next, and all run the same one: the
draft's as long as any rank wants it, else the target's. A rank that wants another one, or is done, runs it on a filler token
and asks again. That is one small all-reduce a forward. A hook on the model asks, so that it covers every forward: rounds,
prompts, trials of what fits.
"""

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import distributed
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import BaseModelOutput

from ..models import are_several, device_of, is_sharded, is_staged
from ..models.sharding import has_sharded_weights


class ForwardBarrier(AbstractContextManager):
    """Keeps the ranks in step while it is open, and at its end until all of them are there.

    An error outside of a forward does not hold up the others: this rank goes on for them, and raises it once they are done.

    Args:
        models: those whose forwards need all ranks, the target first; the same on each rank.
        device: of the prompts, as in plain `generate`; weights may be offloaded to another.

    Attributes:
        is_filling: this rank is running an idle forward for the others.
        is_joined: all ranks are in one all-reduce or forward; an error now leaves the others waiting in it.
    """

    is_filling = is_joined = False

    def __init__(self, models: list[PreTrainedModel], device: torch.device):
        self.models, self.device = models, device

    def __enter__(self) -> "ForwardBarrier":
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
            came, calls = "waited for the other ranks, and not all of them came", "`generate` as often as the others"
            told = f"{came}: under `synced_gpus` each rank has to call {calls}, with or without a draft like them"
            raise RuntimeError(f"{told}. One of them may have raised an error.") from error
        self.is_joined = False
        return max((index for index, count in enumerate(wishes.tolist()) if count), default=None)

    def _fill(self, model: PreTrainedModel) -> None:
        """An idle forward."""
        self.is_joined = True
        token = torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
        if not model.config.is_encoder_decoder:
            model(input_ids=token, use_cache=False)
        else:  # without its encoder, which ran before the first step
            size = model.get_encoder().config.hidden_size
            encoded = BaseModelOutput(torch.zeros(1, 1, size, device=token.device, dtype=model.dtype))
            model(decoder_input_ids=token, encoder_outputs=encoded, use_cache=False)
        self.is_joined = False


def in_step(models: list[PreTrainedModel], device: torch.device) -> AbstractContextManager:
    """A context in which the ranks of a call keep step; an empty one if each rank runs on its own.

    Args:
        models: see `models_in_step`.
        device: of the prompts.
    """
    return ForwardBarrier(models, device) if models else nullcontext()


def check_synced(
    synced_gpus: bool | None, model: PreTrainedModel, draft: PreTrainedModel | None, part_of_target: str | None
) -> None:
    """Refuses what a call cannot do if its ranks wait for each other.

    Args:
        part_of_target: the option whose drafts run parts of the target on their own, if one of the call does.

    Raises:
        ValueError: there are no other ranks, or drafts run parts of the target on their own.
    """
    if synced_gpus and not (distributed.is_available() and distributed.is_initialized()):
        reason = "waits for other processes, and torch.distributed is not initialised"
        raise ValueError(f"`synced_gpus=True` {reason}: start them by torchrun or accelerate, or leave it out.")
    models = models_in_step(synced_gpus, model, draft)
    if part_of_target is not None and (is_staged(model) or models):
        reason = "drafts with parts of the target, and ranks that share weights keep step by whole forwards"
        way_out = "use a draft model of its own or `prompt_lookup_num_tokens=`, or leave it out for plain decoding"
        raise ValueError(f"`{part_of_target}` {reason}: {way_out}.")
    if synced_gpus is False and models:
        told = "FSDP2 has sharded a model of this call: the ranks are kept in step. Pass `synced_gpus=True`."
        warnings.warn(f"`synced_gpus=False`, but {told}", stacklevel=2)


def models_in_step(synced_gpus: bool | None, model: PreTrainedModel, draft: PreTrainedModel | None) -> list[PreTrainedModel]:
    """The models of a call whose forwards need all ranks.

    Args:
        synced_gpus: as given. Default: whether a model's weights are sharded.
    """
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
