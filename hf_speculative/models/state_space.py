"""Mamba 2's state space, stepped: Dao and Gu 2024 (arXiv 2405.21060), section 7."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .steps import Steps


def run(
    steps: Steps,
    single: Callable | None,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """What `mamba_chunk_scan_combined` gives, from the state of `steps`; no limits on `dt`, as a single step has none.

    Args:
        single: a fused kernel for one column; `None`: there is none.
        hidden_states: `(batch, columns, heads, dim)`.
        dt: `(batch, columns, heads)`, to which `dt_bias (heads,)` is added before a softplus.
        A, D: `(heads,)`.
        B, C: `(batch, columns, groups, states)`.

    Returns:
        Outputs like `hidden_states`, and the last state `(batch, heads, dim, states)`.
    """
    _, num_columns, num_heads, dim = hidden_states.shape
    if single is not None:
        dt = dt[..., None].expand(-1, -1, -1, dim)
        A = A[:, None, None].expand(-1, dim, B.shape[-1])
        skip, bias = (part if part is None else part[:, None].expand(-1, dim) for part in (D, dt_bias))
        outputs = []
        for column in range(num_columns):
            state, inputs = steps.state.clone(), (part[:, column] for part in (hidden_states, dt, B, C))
            x, delta, b, c = inputs
            outputs.append(single(state, x, delta, A, b, c, skip, z=None, dt_bias=bias, dt_softplus=True))
            steps.advance(state)
        return torch.stack(outputs, 1), steps.state
    dt = functional.softplus(dt if dt_bias is None else dt + dt_bias.to(dt.dtype))[..., None, None]
    decays = torch.exp(dt.float() * A.float()[:, None, None])
    B, C = (part.repeat_interleave(num_heads // B.shape[2], 2) for part in (B, C))
    inputs = (dt * B[..., None, :]) * hidden_states[..., None]
    outputs = []
    for column in range(num_columns):
        state = steps.state * decays[:, column] + inputs[:, column]
        state = steps.advance(state.to(steps.state.dtype))
        outputs.append(state.to(C.dtype) @ C[:, column, ..., None])
    output = torch.stack(outputs, 1)[..., 0]
    if D is not None:
        output = output + hidden_states * D[:, None]
    return output.to(hidden_states.dtype), state
