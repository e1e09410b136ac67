"""A DFlash block (arXiv 2602.06036), or JetSpec's (arXiv 2606.18394), trained at many places of a text at once.

In use a block begins at the newest token, its anchor, and reads the target's states before it. So tokens of the answers are
drawn as anchors, and the blocks of all of them go through the head in one pass. None sees another.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from ..drafting.autoregressive import raw_embedding
from ..heads.dflash import DFlashHead, DFlashHeadConfig
from ..heads.eagle3_config import speculators_config
from ..models.masks import AttentionLayers
from .head_student import SPECIAL, HeadStudent, layer_fields, num_layers, take_output_layer
from .teacher import Prediction, TeacherOutputs

#: one layer of the head for six of the target's, at most five, as published heads have
TARGET_LAYERS_PER_LAYER, MOST_LAYERS = 6, 5
#: the most hidden states of the target that it reads
MOST_STATES = 5
#: kind: its name, and the kinds of layers in which the block is causal
BLOCKS = {"dflash": ("DFlash block", []), "jetspec": ("JetSpec block", ["full_attention", "sliding_attention"])}


class BlocksAtAnchors(nn.Module):
    """Blocks at several anchors of each text."""

    def __init__(self, head: PreTrainedModel):
        super().__init__()
        self.head, self.block = head, DFlashHeadConfig.of(head.config)
        self.attention = AttentionLayers(head)

    def forward(self, noise_embeds: Tensor, states: Tensor, anchors: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """
        Args:
            noise_embeds: `(batch, anchors * block, hidden)`, each block an anchor and masks.
            states: `(batch, n, states * width)`, the target's.
            anchors: `(batch, anchors)`, their places in the text.
            weights: `(batch, anchors)`, handed on.

        Returns:
            `hidden (batch, anchors, places, hidden)` of the places that predict, and `anchors` and `weights`.
        """
        size, length = self.block.block_size, states.shape[1]
        places = anchors[..., None] + torch.arange(size, device=anchors.device)
        context = torch.arange(length, device=anchors.device).expand(len(anchors), -1)
        outputs = self.head(
            noise_embeds=noise_embeds,
            context_hidden_states=states,
            position_ids=torch.cat([context, places.flatten(1)], 1),
            attention_mask=self.attention.of_block(lambda kind: self.visible(kind, places, length), noise_embeds.dtype),
        )
        hidden = outputs.last_hidden_state.unflatten(1, (-1, size))[:, :, self.block.first :]
        return {"hidden": hidden, "anchors": anchors, "weights": weights}

    def visible(self, kind: str, places: Tensor, length: int) -> Tensor:
        """What `places (batch, anchors, block)` of a text see of it and of all blocks.

        Returns:
            `(batch, 1, anchors * block, length + anchors * block)`: of the text what stands before the anchor, of the blocks
            their own.
        """
        batch, num_anchors, size = places.shape
        blocks = places.flatten(0, 1)
        positions = torch.arange(length + size, device=places.device)
        seen = self.block.visible(kind, blocks, positions)[:, 0]
        before = seen[..., :length] & (positions[:length] < blocks[:, :1])[:, None]
        within = seen.gather(2, blocks[:, None].expand(-1, size, -1)).unflatten(0, (batch, num_anchors))
        is_same = torch.eye(num_anchors, dtype=torch.bool, device=places.device)[:, None, :, None]
        within = (within[:, :, :, None] & is_same).flatten(3).flatten(1, 2)
        return torch.cat([before.unflatten(0, (batch, num_anchors)).flatten(1, 2), within], 2)[:, None]


class DFlashStudent(HeadStudent):
    """A head that fills a block of masks from the target's states; embeddings, and what they have of the output layer, stay.

    Args:
        head: on random weights, or one to go on from.
        num_anchors: drawn in each text, of all tokens that an answer follows.
    """

    def __init__(self, head: PreTrainedModel, target: PreTrainedModel, num_anchors: int = 64):
        self.head, self.target, self.num_anchors = head, target, num_anchors
        self.module, self.block = BlocksAtAnchors(head), DFlashHeadConfig.of(head.config)
        self.kind, _ = BLOCKS["jetspec" if "full_attention" in self.block.causal_layer_types else "dflash"]
        self.hidden_layers, self.max_draft_tokens = self.block.hidden_layers, self.block.max_draft_tokens
        self.embedding = raw_embedding(target.get_input_embeddings())
        own = head.get_output_embeddings()
        if own is not None:
            own.requires_grad_(False)

    def inputs(self, lesson: TeacherOutputs) -> dict[str, Any]:
        states, (anchors, weights) = lesson.states.to(self.head.dtype), self._drawn(lesson.counted)
        ids = lesson.ids.gather(1, anchors)[..., None]
        masks = ids.new_full((*anchors.shape, self.block.block_size - 1), self.block.mask_token_id)
        with torch.no_grad():
            noise = self.embedding(torch.cat([ids, masks], 2).flatten(1)) * self.block.input_embedding_scale
        return {"noise_embeds": noise.to(states.dtype), "states": states, "anchors": anchors, "weights": weights}

    def _drawn(self, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Anchors `(batch, n)` among the tokens that answers follow, and how many of these each stands for; 0 for filler."""
        draws = torch.rand(counted.shape, device=counted.device, generator=self.generator).masked_fill(~counted, -1.0)
        size = max(1, min(self.num_anchors, int(counted.sum(1).max())))
        anchors = draws.topk(size, 1).indices.sort(1).values
        drawn = counted.gather(1, anchors)
        return anchors, drawn * (counted.sum(1, keepdim=True) / drawn.sum(1, keepdim=True).clamp(min=1))

    def predictions(self, outputs: Any, lesson: TeacherOutputs) -> list[Prediction]:
        hidden, anchors, weights = outputs["hidden"], outputs["anchors"], outputs["weights"]
        ahead = torch.arange(self.block.max_draft_tokens, device=anchors.device)
        # The first token decides whether the others are ever looked at (DFlash: gamma 4 and 5 for blocks of 8 and 10).
        of_place = torch.exp(-ahead / (self.block.block_size / 2))
        places = (anchors[..., None] + ahead).flatten(1)
        weights = weights[..., None] * (of_place / of_place.sum())
        return [Prediction(self.logits(hidden).flatten(1, 2), places, weights.flatten(1))]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the head's states; by the target's output layer, which is not trained, where the head has none."""
        own = self.head.get_output_embeddings()
        output = own or self.target.get_output_embeddings()
        frozen = {name: weight.detach() for name, weight in output.named_parameters() if weight.requires_grad}
        dtype = output.weight.dtype if output.weight.is_floating_point() else hidden.dtype
        return self.block.scaled(functional_call(output, frozen, (hidden.to(dtype),)))


def new_block(
    target: PreTrainedModel,
    counts: Tensor,
    draft_vocab_size: int,
    kind: str = "dflash",
    num_draft_tokens: int = 7,
    num_head_layers: int | None = None,
) -> DFlashHead:
    """A head for `target`, in float32, on random weights.

    Args:
        counts: `(vocab,)`, how often each token occurs; the rarest stands for a mask.
        draft_vocab_size: the number of tokens that can be proposed, the most frequent ones. JetSpec's files need all.
        kind: a name in `BLOCKS`.
        num_head_layers: `None`: as many as fit a target of its depth.

    Raises:
        ValueError: the target is not made of what a head needs.
    """
    name, causal = BLOCKS[kind]
    fields, depth = layer_fields(target, name), num_layers(target)
    size = min(draft_vocab_size, fields["vocab_size"]) if kind == "dflash" else fields["vocab_size"]
    num_head_layers = num_head_layers or max(1, min(MOST_LAYERS, depth // TARGET_LAYERS_PER_LAYER))
    num_heads = fields["num_attention_heads"]
    defaults = {"head_dim": fields["hidden_size"] // num_heads, "num_key_value_heads": num_heads}
    config = DFlashHeadConfig(
        **defaults | fields | dict.fromkeys(SPECIAL),
        num_hidden_layers=num_head_layers,
        layer_types=["full_attention"] * num_head_layers,
        causal_layer_types=causal,
        block_size=num_draft_tokens + 1,
        mask_token_id=len(counts) - 1 - int(counts.flip(0).argmin()),
        target_layer_ids=outputs_read(depth),
        draft_vocab_size=size,
        window_from_anchor=True,
        tie_word_embeddings=False,
        num_target_layers=depth,
        speculators_config=speculators_config("dflash", num_draft_tokens, target.config),
    )
    head = DFlashHead(config).float()
    if config.has_own_ids:
        take_output_layer(head, target, counts)
    return head


def outputs_read(depth: int) -> list[int]:
    """Which of a target's layers: evenly from its second to the third from its end, as published heads; 0 is the first."""
    last = depth - 3 if depth > MOST_STATES else max(0, depth - 2)
    first = min(1, last)
    size = min(MOST_STATES, last - first + 1)
    return [round(first + i * (last - first) / max(1, size - 1)) for i in range(size)]
