"""Draft with multi-token prediction heads: one layer for each draft token, fed by the layer before it or the target.

DeepSeek-V3 (arXiv 2412.19437, section 2.2); `use_mtp=True` in transformers, which keeps the layers in an `MtpModel` beside the
target. Layer d reads, for each token, its embedding and the state of layer d - 1 one token earlier; layer 0 that of the
target. All layers keep the entry that goes back to the target's state t in slot t.
"""

from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor
from transformers import PreTrainedModel, __version__

from ..hf_compat import project_to_logits
from ..interfaces import Drafter
from ..models import LAYER_TYPES, AttentionLayers, exchanged, fed_slots, reads_length, with_folded_attention
from ..models.checks import OTHERWISE
from ..models.model_state import loaded_for
from ..models.shallow import decoder_layers
from ..types import Batch
from .autoregressive import HeadDrafter, raw_embedding
from .source import BuildContext, DraftSource, HeadSource


class Mtp(HeadDrafter):
    """Drafts with transformers' `MtpModel`, at most one token a layer.

    Args:
        heads: the MTP layers; embeddings and head are the target's own.

    Attributes:
        seen: for each row, by layer, slots that it has filled for good.
    """

    hidden_layers = (-1,)

    def __init__(self, heads):
        self.heads = with_folded_attention(exchanged(heads, {}))
        self.attention, self.reads_length = AttentionLayers(heads), reads_length(heads)
        self.device, self.dtype = next(heads.layers.parameters()).device, heads.dtype
        self.most_tokens = self.num_layers = len(heads.layers)
        self.unseen = (0,) * self.num_layers

    def _begin_round(self, batch: Batch) -> None:
        self.read_apart(batch)
        # A layer needs what the one before it gave in the same pass, so all start where the last of them has to.
        starts = [min(seen[: self.num_ahead]) for seen in self.seen]
        self.ends = [len(history) - 1 for history in batch.history]
        slots, is_filler = fed_slots(starts, self.ends, self.device)
        self.attend_to(batch, max(self.ends), batch.max_length)
        self.cache.slots = slots.masked_fill(is_filler, self.cache.capacity - 1)
        self.slots = slots.masked_fill(is_filler, 0)
        self.columns = batch.padding[:, None] + self.slots.to(batch.padding.device) + 1
        is_prompt = self.attention.need_no_mask(starts, self.ends)
        self.masks = None if is_prompt else self.attention.masks(self.slots, self.cache)
        self.states = self.target.hidden_states(self.slots).to(self.device, self.dtype)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            self._begin_round(batch)
        ids = batch.tokens.gather(1, self.columns + ahead).to(self.device)
        self.states = self.run(ahead, ids)
        self.num_forwards += 1
        self.seen = [(*seen[:ahead], end, *seen[ahead + 1 :]) for seen, end in zip(self.seen, self.ends, strict=True)]
        return self.project(self.states[:, -1:])[:, 0]

    def read(self, batch: Batch) -> None:
        for ahead in range(self.num_ahead):
            self.step(batch, ahead)
        self.rollback(batch)

    def run(self, depth: int, ids: Tensor) -> Tensor:
        """The states of layer `depth`, of those before and of the tokens `ids (batch, n)`."""
        # transformers' own masks are for rows of one length. Not longer than needed: a cycle would keep caches in memory.
        self.heads.create_masks_for_mtp_layer = self._masks
        try:
            return self.heads.forward_layer(depth, self.states, self.slots + 1 + depth, self.cache, input_ids=ids)
        finally:
            del self.heads.create_masks_for_mtp_layer

    def project(self, states: Tensor) -> Tensor:
        return project_to_logits(self.heads, states)

    def _masks(self, layer: int, *args) -> dict[str, Tensor]:
        kinds, masks = self.attention.types, self.masks
        return {"attention_mask": masks if kinds is None or masks is None else masks[kinds[layer]]}

    def rollback(self, batch: Batch) -> None:
        # Layer d's entry in slot t read tokens up to t + 1 + d; the newest token of a row stands in place of a draft's.
        self.seen = [
            tuple(max(0, min(n, len(history) - 2 - depth)) for depth, n in enumerate(seen))
            for seen, history in zip(self.seen, batch.history, strict=True)
        ]


class RecursiveMtp(Mtp):
    """Drafts with an MTP head of one layer, which reads its own states for each further token (FastMTP, arXiv 2509.18362).

    It was trained as if there were a layer for each, so each has keys and values of its own.

    Args:
        head: the layer.
        target_model: the target, whose embeddings and head the layer uses.
    """

    def __init__(self, head: PreTrainedModel, target_model: PreTrainedModel):
        self.head = with_folded_attention(head)
        self.embed = raw_embedding(target_model.get_input_embeddings())
        self.output, self.output_dtype = target_model.get_output_embeddings(), target_model.dtype
        self.attention, self.device, self.reads_length = AttentionLayers(head), head.device, reads_length(head)
        self.dtype = head.dtype
        self.most_tokens = self.num_layers = head.config.max_draft_tokens
        self.unseen = (0,) * self.num_layers

    def run(self, depth: int, ids: Tensor) -> Tensor:
        masks = self.masks
        if isinstance(masks, dict):  # by the target's types of layers: it attends to everything where any of them does
            masks = masks.get("full_attention", next(iter(masks.values())))
        cache = SimpleNamespace(update=lambda keys, values, *_, **__: self.cache.update(keys, values, depth))
        embeds = self.embed(ids.to(self.embed.weight.device)).to(self.device, self.dtype)
        return self.head(embeds, self.states, self.slots, attention_mask=masks, past_key_values=cache)

    def project(self, states: Tensor) -> Tensor:
        return self.output(states.to(self.output.weight.device, self.output_dtype))


@dataclass(frozen=True)
class MtpSource(DraftSource):
    use_mtp: bool

    argument, method, runs_target = "use_mtp", "mtp", True
    reads_states = takes_guesses = True
    tried = (True,)

    def check(self, model: PreTrainedModel) -> None:
        name, config = type(model).__name__, model.config.get_text_config(decoder=True)
        if not getattr(config, "num_mtp_layers", None):
            raise ValueError(f"`use_mtp=True`: {name} has no MTP layers (`config.num_mtp_layers`): {OTHERWISE}.")
        if not hasattr(_mtp_class(), "forward_layer"):
            raise ValueError(f"`use_mtp=True` needs the MtpModel of transformers 5.23 or later: update {__version__}.")
        kinds = set(getattr(model.config.get_mtp_config(), "layer_types", None) or ["full_attention"])
        if others := ", ".join(sorted(kinds - LAYER_TYPES)):
            reason = f"has MTP layers of type {others}, whose state cannot be rolled back"
            raise ValueError(f"`use_mtp=True`: {name} {reason}: {OTHERWISE}.")
        if mtp_heads not in loaded_for(model) and not model.config.name_or_path:
            reason = "does not come from a checkpoint, which holds the MTP layers"
            way_out = "load it by `from_pretrained`, or leave it out for plain decoding"
            raise ValueError(f"`use_mtp=True`: this {name} {reason}: {way_out}.")
        mtp_heads(model)

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return len(mtp_heads(model).layers)

    def cost_of_token(self, model: PreTrainedModel) -> float:
        return 1 / model.config.get_text_config(decoder=True).num_hidden_layers

    def drafter(self, call: BuildContext) -> Drafter:
        return Mtp(mtp_heads(call.model))


def mtp_heads(model: PreTrainedModel) -> PreTrainedModel:
    """The MTP layers of the model's checkpoint, loaded once a model, beside its last layer and of its dtype.

    Raises:
        ValueError: the checkpoint has none, of which it is asked once.
    """
    kept = loaded_for(model)
    layers = model.get_submodule(decoder_layers(model) or "model.layers")
    device = next(layers[-1].parameters()).device
    if mtp_heads not in kept:
        try:
            kept[mtp_heads] = _mtp_class().from_pretrained(model, device_map={"": device}).eval()
        except (OSError, RuntimeError) as error:  # a config names them, and fine-tuning has left them out
            kept[mtp_heads] = f"`use_mtp=True`: the MTP layers of the checkpoint cannot be loaded: {error} {OTHERWISE}."
    if isinstance(found := kept[mtp_heads], str):
        raise ValueError(found)
    own = next(found.layers.parameters())
    if (own.device, own.dtype) != (device, model.dtype):
        for part in (found.layers, getattr(found, "shared_post_norm", None)):  # all else is the model's own
            if part is not None:
                part.to(device, model.dtype)
        found.tie_with_main_model(model)
    return found


def _mtp_class():
    from transformers import modeling_layers  # older versions have no MtpModel there

    return getattr(modeling_layers, "MtpModel", None)


class MtpHeadSource(HeadSource):
    method = "mtp_head"
    config_fields = ("transformer_layer_config", "num_nextn_predict_layers")

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config.get_text_config(decoder=True)
        fits = (own.hidden_size, own.vocab_size) == (config.hidden_size, config.vocab_size)
        return None if fits else f"a target of hidden size {own.hidden_size} with {own.vocab_size} token ids"

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.draft_model.config.max_draft_tokens

    cost_of_token = MtpSource.cost_of_token  # type: ignore[assignment]

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return RecursiveMtp(self.draft_model, model)
