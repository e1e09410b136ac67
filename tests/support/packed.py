"""What of a model is packed, and its weights."""

import torch

from hf_speculative.models.packed_layers import is_packed


def num_packed(model) -> int:
    return sum(map(is_packed, model.modules()))


def weights(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def have_equal_weights(model, expected) -> bool:
    found = model.state_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) and found[name].stride() == expected[name].stride() for name in found
    )
