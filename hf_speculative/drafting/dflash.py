"""A block of masks, filled in at once: DFlash (arXiv 2602.06036), `speculation_type="dflash"` in transformers.

The draft reads the target's states at several layers as keys and values of its own, then denoises one block: the newest token
and masks after it, which see each other, or those before them only (JetSpec, arXiv 2606.18394). All logits of a block are known
before its first token is drawn. Some heads then correct those of a place by the draft token before it (`chain`: DFlash 2,
DSpark); what the token is drawn from is the corrected distribution. Logits processors still see the tokens drawn before each
position, and the rule gets the processed distributions.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads.dflash import DFlashHeadConfig
from ..heads.layout import of_target
from ..interfaces import Drafter
from ..models import AttentionLayers, fed_slots, reads_length, with_folded_attention
from ..types import Batch, uploaded
from .autoregressive import HeadDrafter, raw_embedding
from .source import HeadSource


class DFlash(HeadDrafter):
    """Drafts with a block-diffusion model that was trained for the target.

    Args:
        model: the draft.
        target_model: the target, whose embeddings the draft uses, and whose head where it has none.
    """

    scores_levels = True
    #: of a round: states in the block and logits of the places that predict, and the chain's states so far
    hidden: Tensor
    logits: Tensor
    states: Tensor

    def __init__(self, model: PreTrainedModel, target_model: PreTrainedModel):
        self.model = with_folded_attention(model)
        self.block, self.num_layers = DFlashHeadConfig.of(model.config), model.config.num_hidden_layers
        self.hidden_layers, self.most_tokens = self.block.hidden_layers, self.block.max_draft_tokens
        self.attention, self.device = AttentionLayers(model), model.device
        self.reads_length = reads_length(model)
        self.head = model.get_output_embeddings() or target_model.get_output_embeddings()
        self.dtype, of_head = model.dtype, target_model if model.get_output_embeddings() is None else model
        self.head_dtype = of_head.dtype
        self.embed = raw_embedding(target_model.get_input_embeddings())
        # transformers' own class has none of these.
        self.chain = getattr(model, "chain", None)
        self.estimate = model.confidence if getattr(model.config, "enable_confidence_head", False) else None
        self.over_target = getattr(model, "over_target", lambda logits: logits)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            self._denoise(batch)
        previous = batch.tokens.gather(1, batch.lengths[:, None] - 1 + ahead)
        return self._logits(ahead, previous, torch.full_like(previous, ahead - 1))[:, 0]

    def chances(self, batch: Batch, ahead: int) -> Tensor | None:
        if self.estimate is None:
            return None
        previous = batch.tokens.gather(1, batch.lengths[:, None] - 1 + ahead).to(self.device)
        return self.estimate(self.hidden[:, ahead, None], previous)[:, 0].float().sigmoid().to(batch.lengths.device)

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        assert batch.tree is not None
        columns = batch.lengths[:, None] + torch.arange(num_nodes - width, num_nodes, device=batch.lengths.device)
        previous, parents = batch.tokens.gather(1, columns), batch.tree.parents[:, -width:] + 1
        return self._logits(batch.tree.depth, previous, parents)

    def _logits(self, place: int, previous: Tensor, before: Tensor) -> Tensor:
        """Logits `(batch, n, vocab)` of a place of the block after each of the tokens `previous (batch, n)`.

        Args:
            before: `(batch, n)`, which of the tokens asked about in this round stands before each, the first at 0.
        """
        logits = self.logits[:, place, None]
        if self.chain is not None:
            before = before.to(self.device)[..., None].expand(-1, -1, self.chain.state_size)
            state = self.states.gather(1, before) if place else self.states.new_zeros(before.shape)
            logits, state = self.chain(logits, self.hidden[:, place, None], previous.to(self.device), state)
            self.states = torch.cat([self.states, state], 1)
        return self.over_target(logits).expand(-1, previous.shape[1], -1)

    def _denoise(self, batch: Batch) -> None:
        """`hidden (batch, places, hidden)` and `logits (batch, places, own vocab)`; the first is after a row's newest token."""
        self.read_apart(batch)
        ends = [len(history) - 1 for history in batch.history]
        context, is_filler = fed_slots(self.seen, ends, self.device)
        size = self.block.block_size
        block = uploaded(ends, self.device)[:, None] + torch.arange(size, device=self.device)
        end = max(ends) + size
        self.attend_to(batch, end, batch.max_length + size)
        self.cache.slots = torch.cat([context.masked_fill(is_filler, self.cache.capacity - 1), block], 1)
        context = context.masked_fill(is_filler, 0)

        newest = batch.tokens.gather(1, batch.lengths[:, None] - 1)
        masks = newest.new_full((len(ends), size - 1), self.block.mask_token_id)
        noise = self.embed(torch.cat([newest, masks], 1).to(self.embed.weight.device))
        slots = torch.arange(end, device=self.device)
        outputs = self.model(
            noise_embeds=(noise * self.block.input_embedding_scale).to(self.device, self.dtype),
            context_hidden_states=self.target.hidden_states(context).to(self.device, self.dtype),
            position_ids=torch.cat([context, block], 1),
            attention_mask=self.attention.of_block(lambda kind: self.block.visible(kind, block, slots), self.model.dtype),
            past_key_values=self.cache,
        )
        self.num_forwards += 1
        self.seen = ends
        self.hidden = outputs.last_hidden_state[:, self.block.first :]
        logits = self.head(self.hidden.to(self.head.weight.device, self.head_dtype))
        self.logits = self.block.scaled(logits).to(self.device, self.dtype)
        self.states = self.hidden[:, :0, : self.chain.state_size if self.chain is not None else 0]


class DFlashSource(HeadSource):
    method = "dflash"
    scores_levels = True
    config_fields = ("target_layer_ids", "block_size", "mask_token_id")

    @property
    def block(self) -> DFlashHeadConfig:
        return DFlashHeadConfig.of(self.draft_model.config)

    def unsupported_reason(self, config) -> str | None:
        size, layers = self.draft_model.config.hidden_size, max(self.block.target_layer_ids)
        if layers >= config.num_hidden_layers or size != config.hidden_size:
            return f"a target of hidden size {size} with more than {layers} layers"
        last_id, d2t = self.block.mask_token_id, getattr(self.draft_model, "d2t", None)
        if d2t is not None:
            last_id = max(last_id, int(of_target(d2t).max()))
        return None if last_id < config.vocab_size else f"a target that has the token id {last_id}"

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.block.max_draft_tokens

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return self.in_trees(DFlash(self.draft_model, model))


class DSparkSource(DFlashSource):
    """One whose block is corrected by a Markov head, which vLLM has a method of its own for."""

    method = "dspark"

    @classmethod
    def takes(cls, value) -> bool:
        return super().takes(value) and bool(getattr(value.config, "markov_rank", 0))
