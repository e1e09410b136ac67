"""Recurrences, run column by column from a state, whose last states are kept."""

import torch
from torch import Tensor
from torch.nn import functional


class Steps:
    """Several columns from a state.

    Args:
        state: `(batch, ...)` before the first column; later, after the last one.
        is_filler: `(batch, columns)` bool of columns that leave the state as it is; `None`: none.
        num_kept: the number of last states to keep in `states`.

    Attributes:
        heads: the states of heads that were run alone so far, if they are.
    """

    def __init__(self, state: Tensor, is_filler: Tensor | None = None, num_kept: int = 0):
        self.state, self.is_filler, self.num_kept = state, is_filler, num_kept
        self.states: list[Tensor] = []
        self.heads: list[list[Tensor]] = []
        self.num_columns = 0

    def advance(self, state: Tensor) -> Tensor:
        """Go on by a column whose state is `state`; returns the state after it, unchanged in rows of filler."""
        if self.is_filler is not None:
            state = unless(self.is_filler[:, self.num_columns], state, self.state)
        self.state, self.num_columns = state, self.num_columns + 1
        if self.num_kept:
            self.states.append(state)
            del self.states[: -self.num_kept]
        return state


def unless(is_filler: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new (batch, ...)`; `old` in rows `is_filler (batch,)`."""
    return torch.where(is_filler.to(new.device).view(-1, *[1] * (new.ndim - 1)), old.to(new.dtype), new)


def gated_delta_rule(
    steps: Steps,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """What `chunk_gated_delta_rule` gives: Yang et al. 2024 (arXiv 2412.06464), with a decay a head, or Kimi's, a channel.

    Args:
        query, key: `(batch, columns, key heads, dim)`.
        value: `(batch, columns, heads, value dim)`.
        g: `(batch, columns, heads)`, or a `dim` more: logarithms of decays.
        beta: `(batch, columns, heads)`.

    Returns:
        Outputs like `value`, and the last state `(batch, heads, dim, value dim)`.
    """
    dtype, groups = query.dtype, value.shape[2] // key.shape[2]
    query, key, value, g, beta = (part.float() for part in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    query = query * query.shape[-1] ** -0.5
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
    return torch.stack(outputs, 1)[:, :, :, 0].to(dtype), steps.state


def selective_scan(
    steps: Steps,
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
    """What Mamba's `selective_scan_fn` gives, which takes no state: Gu and Dao 2023 (arXiv 2312.00752), algorithm 2.

    Args:
        hidden_states, dt, z: `(batch, channels, columns)`; `delta_bias (channels,)` is added to `dt` before a softplus.
        A: `(channels, states)`.
        B, C: `(batch, states, columns)`.
        D: `(channels,)`.

    Returns:
        Outputs like `hidden_states`, and the last state `(batch, channels, states)`.
    """
    if steps.state.ndim == 4:  # Zamba scans one head after the other
        of_head = Steps(steps.state[:, len(steps.heads)], steps.is_filler, hidden_states.shape[2])
        output, state = selective_scan(of_head, hidden_states, dt, A, B, C, D, z, delta_bias)
        steps.heads.append(of_head.states)
        if len(steps.heads) == steps.state.shape[1]:
            for states in zip(*steps.heads, strict=True):
                steps.advance(torch.stack(states, 1))
        return output, state
    dt = functional.softplus(dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]).float()
    x, dt, B, C = (part.transpose(1, 2) for part in (hidden_states, dt, B, C))
    new = dt[..., None] * B.float()[:, :, None] * x.float()[..., None]
    output = _scan(steps, torch.exp(dt[..., None] * A.float()), new, C).transpose(1, 2)
    output = output if D is None else output + hidden_states * D[:, None]
    output = output if z is None else output * functional.silu(z)
    return output.to(hidden_states.dtype), steps.state


def state_space(
    steps: Steps,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """What `mamba_chunk_scan_combined` gives: Dao and Gu 2024 (arXiv 2405.21060), section 7.

    No limits on `dt`, as a single step has none.

    Args:
        hidden_states: `(batch, columns, heads, dim)`.
        dt: `(batch, columns, heads)`, to which `dt_bias (heads,)` is added before a softplus.
        A, D: `(heads,)`.
        B, C: `(batch, columns, groups, states)`.

    Returns:
        Outputs like `hidden_states`, and the last state `(batch, heads, dim, states)`.
    """
    dt = functional.softplus(dt if dt_bias is None else dt + dt_bias.to(dt.dtype))[..., None, None]
    B, C = (part.repeat_interleave(hidden_states.shape[2] // B.shape[2], 2) for part in (B, C))
    new = (dt * B[..., None, :]) * hidden_states[..., None]
    output = _scan(steps, torch.exp(dt.float() * A.float()[:, None, None]), new, C)
    output = output if D is None else output + hidden_states * D[:, None]
    return output.to(hidden_states.dtype), steps.state


def _scan(steps: Steps, decays: Tensor, new: Tensor, C: Tensor) -> Tensor:
    """Decay the state in each column, add what is new, and read it; outputs `(batch, columns, ..., dim)`.

    Args:
        decays, new: `(batch, columns, ..., dim, states)`.
        C: `(batch, columns, ..., states)`.
    """
    outputs = []
    for decay, one, read in zip(decays.unbind(1), new.unbind(1), C.unbind(1), strict=True):
        state = steps.advance((steps.state.float() * decay + one).to(steps.state.dtype))
        outputs.append((state.to(C.dtype) @ read[..., None])[..., 0])
    return torch.stack(outputs, 1)
