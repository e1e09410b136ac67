"""Early exit: the target's first layers draft, and verification runs only the others.

Self-speculation of LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710, section 4.3). The target is two models that share all
weights and one cache: the lower half runs layers 1 to E, then norm and head; the upper half starts from the output of layer E
and runs the rest. A draft step is a pass of the lower half, which writes into the target's own cache. Verification feeds the
lower half its unseen tokens (the last draft token, or the prompt) and then the upper half. No layer runs twice for a token.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..types import Batch
from .ragged import RaggedModel
from .shallow import LayerProxy, decoder_layers, exchanged, output_head


class EarlyExitModel(RaggedModel):
    """A target whose first `exit_layer` layers draft.

    Attributes:
        num_draft_forwards: passes of the lower half alone.
    """

    num_draft_forwards: int = 0

    def __init__(self, model: PreTrainedModel, exit_layer: int):
        path, head = decoder_layers(model), output_head(model)
        if path is None:
            raise ValueError("no single list of decoder layers")
        super().__init__(model)
        self.takes_trees = self.takes_levels = False
        state, layers = SharedHidden(), list(self.model.get_submodule(path))
        before, last, after = layers[: exit_layer - 1], layers[exit_layer - 1], layers[exit_layer:]
        # Each half keeps every index occupied: models look up a layer's attention type by its place.
        lower = nn.ModuleList([*before, Exit(last, state), *(SkippedLayer(layer, state) for layer in after)])
        upper = nn.ModuleList([*(SkippedLayer(layer, state) for layer in before), ResumeLayer(last, state), *after])
        with_head = exchanged(self.model, {path: lower})
        # Where only the hidden states are needed, the head, which may weigh as much as several layers, is left out.
        without_head = with_head if head is None else exchanged(self.model, {path: lower, head: nn.Identity()})
        self.lower_models = {True: with_head, False: without_head}
        self.upper_model, self.state = exchanged(self.model, {path: upper}), state

    def reset(self) -> None:
        super().reset()
        #: the outputs of layer E for tokens that the upper half has not seen, `(batch, n, hidden)`, aligned at the last column
        self.states: list[Tensor] = []

    def exit_logits(self, batch: Batch, ahead: int) -> Tensor:
        """The exit's logits `(batch, vocab)` after the first `ahead` tokens beyond each row's length."""
        self.num_draft_forwards += 1
        return self._run_lower(batch, ahead, head=True)[:, 0]

    def _run_lower(self, batch: Batch, ahead: int, head: bool) -> Tensor:
        if not self.states:
            self._begin(batch, ahead)
            self.seen_by_both = self.host_seen, self.seen
        self.model = self.lower_models[head]
        logits = super().logits(batch, ahead, num_last=1)
        self.num_forwards -= 1  # no pass of the whole model
        # All passes after a round's first are one column wide, so that columns line up from the right.
        self.states.append(self.state.hidden)
        return logits

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        self._run_lower(batch, ahead, head=False)
        self.state.hidden, self.states = torch.cat(self.states, 1), []
        self.host_seen, self.seen = self.seen_by_both
        self.model = self.upper_model
        logits = super().logits(batch, ahead, num_last)
        self.state.hidden = None
        return logits


class SharedHidden:
    """Hidden states on their way from the lower half to the upper one.

    Attributes:
        hidden: `(batch, n, hidden)`, the output of layer E.
        is_tuple: the model's layers return tuples.
    """

    hidden: Tensor | None = None
    is_tuple: bool = False


class Exit(LayerProxy):
    """Run the layer and keep its output."""

    def forward(self, *args, **kwargs):
        output = self.layer(*args, **kwargs)
        self.state.is_tuple = isinstance(output, tuple)
        self.state.hidden = output[0] if self.state.is_tuple else output
        return output


class SkippedLayer(LayerProxy):
    """Skip the layer."""

    def forward(self, hidden_states: Tensor, *args, **kwargs):
        return (hidden_states,) if self.state.is_tuple else hidden_states


class ResumeLayer(SkippedLayer):
    """Continue with the output that the exit kept."""

    def forward(self, hidden_states: Tensor, *args, **kwargs):
        return super().forward(self.state.hidden.to(hidden_states.device))
