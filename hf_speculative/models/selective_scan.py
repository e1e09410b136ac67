"""Mamba's selective scan, stepped: Gu and Dao 2023 (arXiv 2312.00752), algorithm 2. That for prompts takes no state at all."""

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
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """What `selective_scan_fn` gives, from the state of `steps`.

    Args:
        single: a fused kernel for one column; `None`: there is none.
        hidden_states, dt, z: `(batch, channels, columns)`; `delta_bias (channels,)` is added to `dt` before a softplus.
        A: `(channels, states)`.
        B, C: `(batch, states, columns)`.
        D: `(channels,)`.

    Returns:
        Outputs like `hidden_states`, and the last state `(batch, channels, states)`.
    """
    columns = range(hidden_states.shape[2])
    if steps.state.ndim == 4:  # Zamba scans one head after the other
        of_head = Steps(steps.state[:, len(steps.heads)], steps.is_filler, len(columns))
        output, state = run(of_head, single, hidden_states, dt, A, B, C, D, z, delta_bias)
        steps.heads.append(of_head.states)
        if len(steps.heads) == steps.state.shape[1]:
            for states in zip(*steps.heads, strict=True):
                steps.advance(torch.stack(states, 1))
        return output, state
    outputs = []
    if single is not None:
        for column in columns:
            state = steps.state.clone()
            x, delta, b, c = (part[..., column] for part in (hidden_states, dt, B, C))
            gate = None if z is None else z[..., column]
            outputs.append(single(state, x, delta, A, b, c, D, z=gate, dt_bias=delta_bias, dt_softplus=True))
            steps.advance(state)
        return torch.stack(outputs, 2), steps.state
    dt = functional.softplus(dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]).float()[..., None, :]
    decays, inputs = torch.exp(dt * A.float()[..., None]), dt * B.float()[:, None] * hidden_states.float()[:, :, None]
    for column in columns:
        state = steps.state.float() * decays[..., column] + inputs[..., column]
        outputs.append((state.to(C.dtype) @ C[..., column, None])[..., 0])
        state = steps.advance(state.to(steps.state.dtype))
    output = torch.stack(outputs, 2)
    output = output if D is None else output + hidden_states * D[:, None]
    output = output if z is None else output * functional.silu(z)
    return output.to(hidden_states.dtype), state
