"""Extensions of DFlash blocks in published heads: convolutions, and corrections by the draft tokens.

A correction is called a chain here: it turns the logits of a place, which the block gives at once, into those of that place
given the draft token before it. What it keeps from place to place is its state.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..hf_compat.layers import MuseGlimmerAssistantDecoderLayer


class BlockConvolution(nn.Module):
    """Causal convolutions over a block, one before a branch of a layer and one after it, whose taps depend on the token.

    DFlash 2: out[t] = sum over o of (base[o] + dynamic[t, o]) * x[t - o]. The dynamic part is one number for each group of
    `conv_group_size` channels.
    """

    def __init__(self, config):
        super().__init__()
        self.size = (2, config.conv_kernel_size, config.hidden_size // config.conv_group_size)
        base = torch.zeros(2, config.conv_kernel_size, config.hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(config.hidden_size, 2 * self.size[1] * self.size[2], bias=False)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Of `states (batch, block, hidden)`, those that the branch reads, and the dynamic taps for what it gives."""
        before, after = self.kernel_projection(states).unflatten(-1, self.size).unbind(-3)
        return self._convolved(states, before, self.base_kernel[0]), after

    def finish(self, states: Tensor, taps: Tensor) -> Tensor:
        """The branch's output, convolved with the second kernel."""
        return self._convolved(states, taps, self.base_kernel[1])

    def _convolved(self, states: Tensor, taps: Tensor, base: Tensor) -> Tensor:
        kernel = base.to(states.dtype) + taps.repeat_interleave(states.shape[-1] // taps.shape[-1], -1)
        # The last of a window is the token's own.
        windows = functional.pad(states, (0, 0, len(base) - 1, 0)).unfold(1, len(base), 1)
        return (windows.flip(-1).transpose(-1, -2) * kernel).sum(-2)


class ConvolvedLayer(MuseGlimmerAssistantDecoderLayer):
    """A layer with convolutions around attention and MLP."""

    def __init__(self, config, layer_idx: int):
        super().__init__(config, layer_idx)
        self.attention_conv, self.mlp_conv = BlockConvolution(config), BlockConvolution(config)

    def forward(self, hidden_states: Tensor, **kwargs) -> Tensor:
        states, taps = self.attention_conv(self.input_layernorm(hidden_states))
        attended, _ = self.self_attn(hidden_states=states, **kwargs)
        hidden_states = hidden_states + self.attention_conv.finish(attended, taps)
        states, taps = self.mlp_conv(self.post_attention_layernorm(hidden_states))
        return hidden_states + self.mlp_conv.finish(self.mlp(states), taps)


class CandidateSelector(nn.Module):
    """DFlash 2's chain: the likeliest tokens of a place, scored once more by the token before it; no others are left."""

    state_size = 0

    def __init__(self, config):
        super().__init__()
        self.top_k = config.selector_top_k
        self.predecessor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.successor_codebook = nn.Parameter(torch.zeros(config.vocab_size, config.selector_rank))
        self.hidden_projection = nn.Linear(config.hidden_size, config.selector_rank, bias=False)

    def forward(self, logits: Tensor, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `(batch, n, vocab)` of a place after each of the tokens `previous (batch, n)`, and the state there.

        Args:
            logits: `(batch, 1, vocab)` of the place.
            hidden: `(batch, 1, hidden)`, its state in the block.
            state: `(batch, n, state_size)` of the chain after what stands before `previous`; zeros where nothing does.
        """
        known, candidates = logits.topk(min(self.top_k, logits.shape[-1]))
        context = self.predecessor_codebook[previous.clamp(max=len(self.predecessor_codebook) - 1)]
        context = context * self.hidden_projection(hidden)
        scores = known + context @ self.successor_codebook[candidates[:, 0]].transpose(1, 2)
        corrected = logits.new_full((*previous.shape, logits.shape[-1]), -torch.inf)
        return corrected.scatter(-1, candidates.expand_as(scores), scores), state


class MarkovHead(nn.Module):
    """DSpark's chain, "vanilla": what the token before it adds to the logits of a place, of low rank."""

    state_size = 0

    def __init__(self, config):
        super().__init__()
        rank = config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)

    def forward(self, logits: Tensor, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As `CandidateSelector.forward`; logits are those of the draft vocabulary, `previous` ids of the target."""
        latent, state = self.latent(self.embedded(previous), hidden.expand(-1, previous.shape[1], -1), state)
        return logits + self.markov_w2(latent), state

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.markov_w1(tokens.clamp(max=self.markov_w1.num_embeddings - 1))

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What the logits are made of, of `embedded (batch, n, rank)` and `hidden (batch, n, hidden)`, and the next state."""
        return embedded, state


class GatedMarkovHead(MarkovHead):
    """Its "gated" kind: the place's state in the block says how much of it counts."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + config.markov_rank, config.markov_rank)

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate_proj(torch.cat([hidden, embedded], -1)).sigmoid() * embedded, state


class RecurrentMarkovHead(MarkovHead):
    """Its "rnn" kind: with a memory of all draft tokens before."""

    def __init__(self, config):
        super().__init__(config)
        self.state_size = config.markov_rank
        self.joint_proj = nn.Linear(2 * config.markov_rank + config.hidden_size, 3 * config.markov_rank)

    def latent(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate, output = self.joint_proj(torch.cat([state, embedded, hidden], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        return output.tanh(), gate * state + (1 - gate) * candidate.tanh()


MARKOV_HEADS = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RecurrentMarkovHead}


class ConfidenceHead(nn.Module):
    """DSpark's estimate, in logits, of how likely the target accepts a token of a place."""

    def __init__(self, width: int):
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.proj(features)[..., 0]
