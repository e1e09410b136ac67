"""DFlash heads (Chen et al. 2026, arXiv 2602.06036): a block of masks, filled in at once from the target's states.

transformers' `MuseGlimmerAssistantModel` is such a head, and runs those that have nothing more. `DFlashHead` is that model with
what others add: a draft vocabulary of their own, DFlash 2's convolutions and selector, DSpark's Markov and confidence heads.
"""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedConfig

from ..hf_compat.layers import MuseGlimmerAssistantDecoderLayer
from .layout import over_target


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


@strict
class DFlashHeadConfig(MuseGlimmerAssistantConfig):
    """Config of a DFlash head, with what transformers' own class does not hold; where a head's does not say it, it is as there.

    Args:
        block_size: tokens of a block, the newest one and masks.
        target_layer_ids: layers of the target whose outputs are read; -1 is the embeddings.
        vocab_size: the target's; `None`: not known, as of what transformers' own class says.
        draft_vocab_size: tokens that the head can propose; its output layer is its own where these are fewer.
        sample_from_anchor: the newest token's place predicts as well, each place the token after it; else a mask predicts the
            token in its own place.
        causal_layer_types: kinds of layers in which a place of the block sees no later one.
        window_from_anchor: a window reaches back from the block's first token for all of it, and is none inside; else it
            reaches from each place, both ways.
        sliding_window: how far.
        input_embedding_scale, output_multiplier, final_logit_softcapping: of the target's embeddings and of the logits.
        conv_kernel_size, conv_group_size: DFlash 2's convolutions; a size of 0: none.
        selector_rank, selector_top_k: its candidate selector; a rank of 0: none.
        markov_rank, markov_head_type: DSpark's correction by the draft token before; a rank of 0: none.
        enable_confidence_head, confidence_head_with_markov: its estimate of acceptance, and whether that reads this token, too.
    """

    model_type = "dflash_head"

    vocab_size: Any = None
    draft_vocab_size: Any = None
    sample_from_anchor: bool = False
    causal_layer_types: list[str] | tuple[str, ...] = ()
    window_from_anchor: bool = False
    input_embedding_scale: float | int = 1.0
    output_multiplier: float | int = 1.0
    final_logit_softcapping: float | int | None = None
    conv_kernel_size: int = 0
    conv_group_size: int = 16
    selector_rank: int = 0
    selector_top_k: int = 16
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "DFlashHeadConfig":
        """What the `config` of a head of either class says."""
        return config if isinstance(config, cls) else cls.from_dict(config.to_dict())

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """What it reads of transformers' `hidden_states`, which begin with the embeddings."""
        return tuple(layer + 1 for layer in self.target_layer_ids)

    @property
    def first(self) -> int:
        """The first place that predicts."""
        return 0 if self.sample_from_anchor else 1

    @property
    def max_draft_tokens(self) -> int:
        return self.block_size - self.first

    def visible(self, kind: str, positions: Tensor, slots: Tensor) -> Tensor:
        """Which of `slots (n,)` places at `positions (batch, block)` see in a layer of a `kind`: `(batch, 1, block, n)`."""
        query, anchor, last = positions[:, None, :, None], positions[:, :1, None, None], positions[:, -1:, None, None]
        visible = (slots <= (query if kind in self.causal_layer_types else last)).expand(-1, -1, positions.shape[1], -1)
        if kind != "sliding_attention":
            return visible
        near = slots >= anchor - self.sliding_window
        return visible & (near if self.window_from_anchor else (slots - query).abs() <= self.sliding_window)

    def scaled(self, logits: Tensor) -> Tensor:
        """What the head makes of `logits` by its output multiplier and soft cap."""
        if self.output_multiplier != 1.0:
            logits = logits * self.output_multiplier
        cap = self.final_logit_softcapping
        return (logits / cap).tanh() * cap if cap else logits

    @property
    def has_own_ids(self) -> bool:
        """Its ids are not the target's, and with them its output layer."""
        return None not in (self.vocab_size, self.draft_vocab_size) and self.draft_vocab_size < self.vocab_size


class DFlashHead(MuseGlimmerAssistantModel):
    """transformers' model of a DFlash head, with what published heads add to it."""

    config: DFlashHeadConfig
    config_class = DFlashHeadConfig
    _no_split_modules = ("MuseGlimmerAssistantDecoderLayer", "ConvolvedLayer")

    def __init__(self, config: DFlashHeadConfig):
        super().__init__(config)
        if config.conv_kernel_size:
            self.layers = nn.ModuleList(ConvolvedLayer(config, index) for index in range(config.num_hidden_layers))
        if config.has_own_ids:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        if config.selector_rank:
            self.candidate_selector = CandidateSelector(config)
        if config.markov_rank:
            self.markov_head = MARKOV_HEADS[config.markov_head_type](config)
        if config.enable_confidence_head:
            width = config.markov_rank if config.confidence_head_with_markov else 0
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(config.hidden_size + width, 1)})
        self.post_init()

    @property
    def chain(self) -> nn.Module | None:
        """What corrects the logits of a place by the draft token before it, if anything does."""
        return getattr(self, "candidate_selector", getattr(self, "markov_head", None))

    def get_output_embeddings(self) -> nn.Module | None:
        return getattr(self, "lm_head", None)

    def over_target(self, logits: Tensor) -> Tensor:
        """`logits (..., draft vocabulary)` by the target's ids: `(..., vocab)`, -inf where there is no draft token."""
        return over_target(logits, self.d2t, self.config.vocab_size) if self.config.has_own_ids else logits

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """How likely the target accepts what is drawn at a place, `(batch, n)` in logits: before it is drawn.

        Args:
            hidden: `(batch, n, hidden)`, the place's states in the block.
            previous: `(batch, n)`, the tokens before it.
        """
        if self.config.confidence_head_with_markov:
            hidden = torch.cat([hidden, self.markov_head.embedded(previous).to(hidden.dtype)], -1)
        return self.confidence_head["proj"](hidden)[..., 0]
