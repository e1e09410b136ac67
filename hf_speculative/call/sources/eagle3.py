"""A head that goes on from the target's states: `draft_model=` an EAGLE-3 or P-EAGLE head."""

from __future__ import annotations

from typing import ClassVar

from transformers import PreTrainedModel

from ...drafting import Eagle3, PEagle
from ...interfaces import Drafter
from ...models import head_pass, num_logits
from ...tokenizers.vocabulary import is_padding
from ..source import BuildContext
from .given_model import HeadSource


class Eagle3Source(HeadSource):
    method = "eagle3"
    kind: ClassVar[type[Eagle3]] = Eagle3
    has_own_passes = True
    scores_levels = True
    config_fields = ("eagle_aux_hidden_state_layer_ids", "norm_before_residual")

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config
        layers = Eagle3.layers_read(own, config)
        fits = min(layers) >= 0 and max(layers) <= config.num_hidden_layers and own.state_size == config.hidden_size
        least = max(own.eagle_aux_hidden_state_layer_ids or [3])
        return None if fits else f"a target of hidden size {own.state_size} with {least} layers or more"

    def check(self, model: PreTrainedModel) -> None:
        super().check(model)
        own, embeddings = self.draft_model.config, model.get_input_embeddings().weight
        size = own.get_text_config(decoder=True).hidden_size
        if not own.has_embed_tokens and embeddings.shape[1] != size:
            raise ValueError(
                f"`draft_model`: {self.name} has no embeddings of its own (embed_tokens.weight), and those of the target are "
                f"{embeddings.shape[1]} wide where it reads {size}: use the draft that belongs to it."
            )

    def check_ids(self, model: PreTrainedModel) -> None:
        size, own = num_logits(model), self.draft_model.config.get_text_config(decoder=True).vocab_size
        if not is_padding(size, own):
            raise ValueError(
                f"`draft_model`: {self.name} was made for a vocabulary of {own} entries and the target has {size}, more than "
                "padding explains: use the draft that belongs to it."
            )

    def drafter_for(self, model: PreTrainedModel) -> Drafter:
        return self.in_trees(self.kind(self.draft_model, model))

    def drafter(self, call: BuildContext) -> Drafter:
        one_pass = head_pass(self.draft_model, call.compile)
        return self.in_trees(self.kind(self.draft_model, call.model, one_pass))


class PEagleSource(Eagle3Source):
    """All draft tokens come from one pass."""

    method = "peagle"
    kind = PEagle

    @classmethod
    def takes(cls, value) -> bool:
        return super().takes(value) and value.config.is_parallel

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.draft_model.config.num_depths
