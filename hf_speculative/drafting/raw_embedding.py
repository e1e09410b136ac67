"""The target's embeddings as heads read them."""

import torch
from torch import nn

from ..models import exchanged


def raw_embedding(embedding: nn.Module) -> nn.Module:
    """Embeddings as they stand in the weights, without the norm or the scale that some targets add."""
    if hasattr(embedding, "embed_norm"):
        embedding = exchanged(embedding, {"embed_norm": nn.Identity()})
    if hasattr(embedding, "embed_scale"):
        scale, embedding = torch.as_tensor(embedding.embed_scale), exchanged(embedding, {})
        embedding._buffers = dict(embedding._buffers)  # the copy shares those of the original
        embedding.embed_scale = torch.ones_like(scale)
    return embedding
