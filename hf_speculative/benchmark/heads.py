"""Draft heads of realistic size with random weights, and acceptance by lot: what each kind costs, on any machine.

No weights make a random head agree with a random target to a given degree, as the target's own first layers can be made to. But
what a round costs does not depend on which tokens are right. So the head drafts in earnest, the target scores its tokens in
earnest, and then a coin decides: each draft token is kept with the chance that the pair is calibrated to, once those before it
are. That is alpha of Leviathan et al. 2023 (arXiv 2211.17192), and their assumption that all tokens are alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from ..heads.eagle3 import Eagle3Model
from ..heads.eagle3_config import Eagle3Config, speculators_config
from ..heads.mtp import MtpHead, MtpHeadConfig
from ..hf_compat import from_config
from ..interfaces import Rule, Sampler
from ..types import Draft, Verdict
from .passes import weight_bytes
from .random_weights import fill

#: tokens that an EAGLE-3 head can draft, as in most that are published
DRAFT_VOCABULARY = 32000
#: layers, and tokens of a block, of z-lab's and most other DFlash drafts
DFLASH_LAYERS, DFLASH_BLOCK = 5, 16


class KeptByLot(Rule):
    """Keeps each draft token with a chance of its own, whatever it is; what follows is the target's. Lossy, for measuring only.

    Args:
        chance: that a draft token is kept, once those before it are.
        seed: of the coins.
    """

    reads_draft_probs = False

    def __init__(self, chance: float, seed: int = 0):
        self.chance, self.coins = chance, torch.Generator().manual_seed(seed)

    def __call__(self, draft: Draft, target_probs, sampler: Sampler) -> Verdict:
        is_kept = torch.rand(draft.tokens.shape, generator=self.coins) < self.chance
        num_kept = is_kept.long().cumprod(1).sum(1).to(draft.tokens.device).minimum(draft.num_tokens)
        drawn = sampler.categorical(target_probs)
        return Verdict(num_kept, drawn.gather(1, num_kept[:, None])[:, 0])


def layers_of(target: PreTrainedModel, num_layers: int) -> dict[str, object]:
    """Fields of a config of so many layers, as wide as those of the target."""
    config = target.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "max_position_embeddings": config.max_position_embeddings,
    }


def eagle3(target: PreTrainedModel) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """A layer over three of the target's states, with a head of its own for the commonest tokens."""
    vocab_size = target.config.get_text_config(decoder=True).vocab_size
    return Eagle3Model, Eagle3Config(
        transformer_layer_config=layers_of(target, 1) | {"model_type": "llama", "vocab_size": vocab_size},
        draft_vocab_size=min(DRAFT_VOCABULARY, vocab_size),
        norm_before_residual=True,
        has_embed_tokens=False,
    )


def dflash(target: PreTrainedModel) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """A block filled in at once by a few layers, over as many of the target's states."""
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    num_layers = min(DFLASH_LAYERS, depth)
    spread = [1 + round(i * max(0, depth - 4) / max(1, num_layers - 1)) for i in range(num_layers)]
    return MuseGlimmerAssistantModel, MuseGlimmerAssistantConfig(
        **layers_of(target, num_layers),
        layer_types=["full_attention"] * num_layers,
        block_size=DFLASH_BLOCK,
        mask_token_id=0,
        target_layer_ids=[min(layer, depth - 1) for layer in spread],
    )


def mtp(target: PreTrainedModel) -> tuple[type[PreTrainedModel], PreTrainedConfig]:
    """One more layer of the target's type, used again for each further token."""
    return MtpHead, MtpHeadConfig(
        transformer_layer_config=target.config.get_text_config(decoder=True).to_dict(),
        speculators_config=speculators_config("mtp", num_draft_tokens=DFLASH_BLOCK - 1),
    )


#: class and config of a head for a target, by the name of its method
HEADS: dict[str, Callable[[PreTrainedModel], tuple[type[PreTrainedModel], PreTrainedConfig]]] = {
    "eagle3": eagle3,
    "dflash": dflash,
    "mtp": mtp,
}


def make_head(kind: str, target: PreTrainedModel) -> PreTrainedModel:
    """A head of random weights, in the target's dtype and on its device; its tokens are the target's first ones."""
    model_class, config = HEADS[kind](target)
    with torch.device(target.device):
        head = from_config(model_class, config, dtype=target.dtype).eval()
    fill(head)
    if getattr(head, "t2d", None) is not None:
        head.d2t.zero_()
        head.t2d.copy_(torch.arange(len(head.t2d), device=head.t2d.device) < len(head.d2t))
    return head


def share_of_pass(head: PreTrainedModel, target: PreTrainedModel) -> float:
    """Bytes of weights that a pass of the head reads over those of a target's pass: what it should cost where memory is slow.

    A head without an output layer of its own uses the target's.
    """
    own = sum(parameter.nbytes for parameter in head.parameters())
    if head.get_output_embeddings() is None:
        own += target.get_output_embeddings().weight.nbytes
    return own / weight_bytes(target)
