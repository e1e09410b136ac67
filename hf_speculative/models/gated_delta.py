"""The gated delta rule, stepped: Yang et al. 2024 (arXiv 2412.06464), with a decay a head, and Kimi's, with one a channel."""

from collections.abc import Callable

import torch
from torch import Tensor

from .steps import Steps


def run(
    steps: Steps,
    single: Callable | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Step the gated delta rule from the state of `steps`; returns what `chunk_gated_delta_rule` would.

    Args:
        single: a fused kernel for one column; `None`: there is none.
        query, key: `(batch, columns, key heads, dim)`.
        value: `(batch, columns, heads, value dim)`.
        g: `(batch, columns, heads)`, or a `dim` more: logarithms of decays.
        beta: `(batch, columns, heads)`.

    Returns:
        Outputs like `value`, and the last state `(batch, heads, dim, value dim)`.
    """
    if single is not None:
        columns = zip(*(part.split(1, 1) for part in (query, key, value, g, beta)), strict=True)
        kwargs = {"output_final_state": True, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
        outputs = []
        for q, k, v, decay, rate in columns:
            output, state = single(q, k, v, g=decay, beta=rate, initial_state=steps.state, **kwargs)
            steps.advance(state)
            outputs.append(output)
        return torch.cat(outputs, 1), steps.state
    dtype, groups = query.dtype, value.shape[2] // key.shape[2]
    query, key, value, g, beta = (part.float() for part in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    query = query * query.shape[-1] ** -0.5
    if groups > 1:
        query, key = (part.repeat_interleave(groups, 2) for part in (query, key))
    decays = g.exp().view(*value.shape[:3], -1, 1)
    # A matrix for each row and head: the delta rule replaces what the key retrieves.
    learns, finds, key = (value * beta[..., None])[..., None, :], (key * -beta[..., None])[..., None, :], key[..., None]
    query = query[..., None, :]
    outputs = []
    for column in range(value.shape[1]):
        state = steps.state.float() * decays[:, column]
        delta = finds[:, column] @ state + learns[:, column]
        state = steps.advance(torch.addcmul(state, key[:, column], delta))
        outputs.append(query[:, column] @ state)
    return torch.stack(outputs, 1)[:, :, :, 0].to(dtype), state
