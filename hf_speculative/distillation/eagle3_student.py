"""An EAGLE-3 head, trained by training-time test (arXiv 2503.01840, section 3.2).

In use, a head goes on from its own states. So it is trained on them. A first step reads the target's states at all positions at
once. Each further step reads the states of the one before, and the next tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from ..heads.eagle3 import Eagle3Model
from ..heads.eagle3_config import Eagle3Config, default_layers, speculators_config
from ..models.masks import AttentionLayers
from .head_student import HeadStudent, layer_fields, num_layers, take_output_layer
from .teacher import Prediction, TeacherOutputs

#: with fewer layers, the usual ones would not be three
LEAST_LAYERS = 6


class TrainingTimeTest(nn.Module):
    """Several steps of a head on its own states, at all positions at once."""

    def __init__(self, head: Eagle3Model, num_steps: int):
        super().__init__()
        self.head, self.num_steps, self.attention = head, num_steps, AttentionLayers(head)

    def forward(self, inputs_embeds: Tensor, target_states: Tensor) -> list[Tensor]:
        """
        Args:
            inputs_embeds: `(batch, n, hidden)`; that of slot i is of token i + 1 of the text.
            target_states: `(batch, n, states * width)`; that of slot i is of token i.

        Returns:
            Of each step k the logits `(batch, n - k, draft vocabulary)`; those of slot i guess token i + 2 + k.
        """
        num_slots = inputs_embeds.shape[1]
        slots = torch.arange(num_slots, device=inputs_embeds.device)
        states, cache, seen, found = self.head.fuse(target_states), DynamicCache(), [], []
        for step in range(min(self.num_steps, num_slots)):
            now = slots[: num_slots - step]
            # Of the target's states a slot sees those up to its own, of each further step that of its own slot.
            seen.append(now <= slots[:, None] if step == 0 else now == slots[:, None])
            places, mask = now[None] + 1 + step, torch.cat(seen, 1)[None, None, : len(now)]
            asked = {"attention_mask": self.attention.explicit(mask, states.dtype), "past_key_values": cache}
            states = self.head(inputs_embeds[:, step:], states[:, : len(now)], places, **asked)
            found.append(self.head.logits(states))
        return found


class Eagle3Student(HeadStudent):
    """A head that reads three of the target's hidden states.

    Args:
        head: on random weights, or one to go on from.
        num_steps, decay: of the training-time test; each step counts `decay` times the one before.
    """

    kind = "EAGLE-3 head"

    def __init__(self, head: Eagle3Model, target: PreTrainedModel, num_steps: int = 3, decay: float = 0.8):
        self.head, self.target, self.decay = head, target, decay
        self.module = TrainingTimeTest(head, num_steps)
        self.hidden_layers = head.config.layers_read(num_layers(target))

    def inputs(self, lesson: TeacherOutputs) -> dict[str, Any]:
        dtype = self.head.dtype
        with torch.no_grad():
            # The weights themselves, as in use: some targets scale or norm what they look up there.
            own = self.head.get_input_embeddings() or self.target.get_input_embeddings()
            embeddings = functional.embedding(lesson.ids[:, 1:], own.weight)
        return {"inputs_embeds": embeddings.to(dtype), "target_states": lesson.states[:, :-1].to(dtype)}

    def predictions(self, outputs: Any, lesson: TeacherOutputs) -> list[Prediction]:
        return [Prediction.along(logits, step + 1, self.decay**step) for step, logits in enumerate(outputs)]


def new_head(target: PreTrainedModel, counts: Tensor, draft_vocab_size: int, num_draft_tokens: int = 5) -> Eagle3Model:
    """A head for `target`, in float32: its layer random, its output layer the target's.

    Args:
        counts: `(vocab,)`, how often each token occurs; the most frequent `draft_vocab_size` can be proposed.

    Raises:
        ValueError: the target is not made of what a head needs.
    """
    fields = layer_fields(target, "EAGLE-3 head")
    config = Eagle3Config(
        transformer_layer_config={"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False} | fields,
        draft_vocab_size=min(draft_vocab_size, fields["vocab_size"]),
        has_embed_tokens=False,
        eagle_aux_hidden_state_layer_ids=list(layers_read(num_layers(target))),
        speculators_config=speculators_config("eagle3", num_draft_tokens, target.config),
        fc_norm=True,  # both norms are those of EAGLE-3.1 (arXiv 2605.09992)
        norm_output=True,
    )
    head = Eagle3Model(config).float()
    take_output_layer(head, target, counts)
    return head


def layers_read(num_layers: int) -> tuple[int, ...]:
    """As EAGLE, speculators and vLLM; of a target of few layers, the first, middle and last but one of its states."""
    if num_layers >= LEAST_LAYERS:
        return default_layers(num_layers)
    return tuple(sorted({1, max(1, num_layers // 2), max(1, num_layers - 1)}))
