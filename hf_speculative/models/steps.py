"""Recurrences over several columns from a state: column by column, or all at once in compiled passes."""

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..hf_compat import ACT2FN

#: the least logarithm of a decay, which leaves nothing
LEAST_LOG = -1e4
#: outputs of all columns, and the state after the last one
Scanned = tuple[Tensor, Tensor]


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

    def next_head(self, run: Callable[["Steps"], Tensor]) -> Tensor:
        """Return the output of `run` over the next head of the state; each runs alone."""
        of_head = self._of_head(len(self.heads))
        output = run(of_head)
        self.heads.append(of_head.states)
        if len(self.heads) == self.state.shape[1]:
            for states in zip(*self.heads, strict=True):
                self.advance(torch.stack(states, 1))
        return output

    def _of_head(self, head: int) -> "Steps":
        return Steps(self.state[:, head], self.is_filler, sys.maxsize)

    def delta_rule(self, query: Tensor, key: Tensor, value: Tensor, log_decays: Tensor, beta: Tensor) -> Tensor:
        """Decay the state `(batch, heads, dim, value dim)` in each column, and replace what the key retrieves.

        Args:
            query, key: `(batch, columns, heads, dim)`.
            value: `(batch, columns, heads, value dim)`.
            log_decays: `(batch, columns, heads, 1 or dim)`.
            beta: `(batch, columns, heads, 1)`.

        Returns:
            What queries retrieve, like `value`.
        """
        decays = log_decays.exp()[..., None]
        learns, finds, key = (value * beta)[..., None, :], (key * -beta)[..., None, :], key[..., None]
        query = query[..., None, :]
        outputs = []
        for column in range(value.shape[1]):
            state = self.state.float() * decays[:, column]
            delta = finds[:, column] @ state + learns[:, column]
            state = self.advance(torch.addcmul(state, key[:, column], delta))
            outputs.append(query[:, column] @ state)
        return torch.stack(outputs, 1)[:, :, :, 0]

    def scan(self, log_decays: Tensor, inputs: Tensor, keys: Tensor, reads: Tensor) -> Tensor:
        """Decay the state `(batch, ..., dim, states)` in each column, add the inputs by their keys, and read it.

        Args:
            log_decays, keys: `(batch, columns, ..., dim, states)`. A head that shares them has 1 in the place of `dim`, and
                decays have it in the place of `states` as well.
            inputs: `(batch, columns, ..., dim)`.
            reads: `(batch, columns, ..., states)`.

        Returns:
            `(batch, columns, ..., dim)`.
        """
        new, outputs = keys * inputs[..., None], []
        for decay, one, read in zip(log_decays.exp().unbind(1), new.unbind(1), reads.unbind(1), strict=True):
            state = self.advance((self.state.float() * decay + one).to(self.state.dtype))
            outputs.append((state.to(reads.dtype) @ read[..., None])[..., 0])
        return torch.stack(outputs, 1)


class Branching(Steps):
    """Columns of a tree, each of which starts from its parent's state.

    Args:
        parents: `(batch, columns)` places in `after` of what each starts from.

    Attributes:
        after: `(1 + columns, batch, ...)` the state before all columns, and that after each.
    """

    def __init__(self, state: Tensor, is_filler: Tensor | None, parents: Tensor):
        super().__init__(state, is_filler)
        self.parents, self.rows = parents, torch.arange(len(parents), device=parents.device)
        self.after = state.new_empty(1 + parents.shape[1], *state.shape)
        self.after[0] = state

    def advance(self, state: Tensor) -> Tensor:
        state = super().advance(state)
        self.after[self.num_columns] = state
        self.states.append(self.after[self.num_columns])
        if self.num_columns < self.parents.shape[1]:
            self.state = self.after[self.parents[:, self.num_columns], self.rows]
        return state

    def _of_head(self, head: int) -> Steps:
        return Branching(self.after[0, :, head], self.is_filler, self.parents)


class AtOnce(Steps):
    """All columns from a state in one formula, without a loop over them, so that a trace serves any number of columns.

    Decays between two columns come from sums of logarithms. The delta rule solves a triangular system (Yang et al. 2024,
    arXiv 2412.06464, section 3.3, for one chunk). Rounding depends on where a pass begins, unlike in `Steps`.

    Args:
        state: before the first column, and afterwards as well.
        new: what is written, see `StateLayout`.
        is_filler: as in `Steps`.
        ancestors: `(batch, columns, columns)` bool, which columns each follows, itself among them; they come before it.
    """

    def __init__(self, state: Tensor, new: Tensor, is_filler: Tensor, ancestors: Tensor):
        super().__init__(state, is_filler)
        self.new, self.ancestors = new, ancestors

    def _of_head(self, head: int) -> Steps:
        return AtOnce(self.state[:, head], self.new[:, :, head], self.is_filler, self.ancestors)  # type: ignore[arg-type]

    def delta_rule(self, query: Tensor, key: Tensor, value: Tensor, log_decays: Tensor, beta: Tensor) -> Tensor:
        query, key, value, beta = (part.transpose(1, 2) for part in (query, key, value, self._none_of_filler(beta)))
        logs, since_start, between = self._decays(log_decays)
        logs, since_start, between = logs.transpose(1, 2), since_start.transpose(1, 2), between.permute(0, 3, 1, 4, 2)
        both = torch.stack([key, query])
        if between.shape[3] == 1:
            corrections, scores = both @ key.transpose(-1, -2) * between[:, :, :, 0]
        else:  # keys as they have decayed by a later column: (batch, heads, later, dim, column)
            keys = between * key.transpose(-1, -2)[:, :, None]
            corrections, scores = (both[..., None, :] @ keys)[..., 0, :]
        # One product reads the state, which is large.
        found = (both * since_start).movedim(0, 2).flatten(2, 3) @ self.state.float()
        found, retrieved = found.unflatten(2, (2, -1)).unbind(2)
        delta = beta * (value - found)
        delta = torch.linalg.solve_triangular(beta * corrections, delta, upper=False, unitriangular=True)
        self._write(logs, key, delta)
        return (retrieved + scores @ delta).transpose(1, 2)

    def scan(self, log_decays: Tensor, inputs: Tensor, keys: Tensor, reads: Tensor) -> Tensor:
        logs, since_start, between = self._decays(log_decays)
        keys, state = self._none_of_filler(keys).float(), self.state.float()
        if log_decays.shape[-1] > 1:
            states = state[:, None] * since_start + (between * (keys * inputs[..., None])[:, None]).sum(2)
            self.new.copy_(states.transpose(0, 1))
            return (states.to(self.state.dtype).to(reads.dtype) @ reads[..., None])[..., 0]
        inputs, keys, reads = (part.float().transpose(1, 2) for part in (inputs, keys[..., 0, :], reads))
        logs, since_start = (part[..., 0].transpose(1, 2) for part in (logs, since_start))
        self._write(logs, inputs, keys)
        scores = reads @ keys.transpose(-1, -2) * between[..., 0, 0].permute(0, 3, 1, 2)
        outputs = (reads @ state.transpose(-1, -2)) * since_start + scores @ inputs
        return outputs.transpose(1, 2).contiguous()  # mixers view it

    def _write(self, logs: Tensor, left: Tensor, right: Tensor) -> None:
        """Write decays and factors `(batch, heads, columns, ...)`."""
        self.new.copy_(torch.cat([logs.expand_as(left), left, right], -1).transpose(1, 2))

    def _none_of_filler(self, values: Tensor) -> Tensor:
        """Set `values (batch, columns, ...)` to 0 in columns of filler."""
        assert self.is_filler is not None
        return values.masked_fill(self.is_filler.view(*self.is_filler.shape, *[1] * (values.ndim - 2)), 0)

    def _decays(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logarithms of decays and decays since the start, `(batch, columns, ...)`, and those between columns.

        The latter are `(batch, later, column, ...)`.
        """
        # In float64, since large sums have small differences; clamped, since infinite ones have none.
        logs = self._none_of_filler(logs).double().clamp(min=LEAST_LOG)
        sums = (self.ancestors.double() @ logs.flatten(2)).view(logs.shape)
        between = (sums[:, :, None] - sums[:, None]).float().exp()
        return logs.float(), sums.float().exp(), between.where(self.ancestors[(..., *[None] * (logs.ndim - 2))], 0)


def moved_right(inputs: Tensor, size: int, num_filler: Tensor) -> Tensor:
    """The first `size` of `inputs (batch, ..., n)` moved past each row's first `num_filler (batch,)` columns after them."""
    place, by = torch.arange(inputs.shape[-1], device=inputs.device), num_filler[:, None]
    source = torch.where((place >= by) & (place < by + size), place - by, place)
    return inputs.gather(-1, source.view(inputs.shape[0], *[1] * (inputs.ndim - 2), -1).expand_as(inputs))


def along(inputs: Tensor, paths: Tensor) -> Tensor:
    """Of `inputs (batch, channels, n)` those at `paths (batch, columns, size)`: `(batch, columns, channels, size)`."""
    rows = torch.arange(paths.shape[0], device=paths.device)[:, None, None]
    return inputs.transpose(1, 2)[rows, paths].transpose(2, 3)


def paths_of(ancestors: Tensor, size: int) -> Tensor:
    """Where the last `size` inputs of each column are, the oldest first, among `size` before the pass and those of the pass.

    Args:
        ancestors: as of `AtOnce`.

    Returns:
        `(batch, columns, size)` places.
    """
    depths = ancestors.sum(-1)
    wanted = depths[..., None] - torch.arange(size - 1, -1, -1, device=depths.device)
    are_wanted = ancestors[:, :, None] & (depths[:, None, None] == wanted[..., None])
    return torch.where(wanted > 0, size + are_wanted.long().argmax(-1), size - 1 + wanted)


def parents_of(ancestors: Tensor) -> Tensor:
    """The `parents` of `Branching`, by the `ancestors` of `AtOnce`."""
    return (paths_of(ancestors, 2)[..., 0] - 1).clamp(min=0)


def convolved(
    paths: Tensor, hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs
) -> Tensor:
    """What `causal_conv1d_fn` gives, along the paths of a tree: `(batch, channels, columns)`.

    Args:
        paths: as `paths_of` gives them.
        hidden_states: `(batch, channels, size + columns)`.
        weight: `(channels, kernel size)`.
    """
    windows = along(hidden_states.to(weight.dtype), paths[..., paths.shape[-1] - weight.shape[-1] :])
    output = (windows * weight).sum(-1).transpose(1, 2)
    output = output if bias is None else output + bias[:, None]
    return (output if activation is None else ACT2FN[activation](output)).to(hidden_states.dtype)


def unless(is_filler: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new (batch, ...)`; `old` in rows `is_filler (batch,)`."""
    return torch.where(is_filler.to(new.device).view(-1, *[1] * (new.ndim - 1)), old.to(new.dtype), new)


def gated_delta_rule(steps: Steps, query, key, value, g, beta, use_qk_l2norm_in_kernel=False, **kwargs) -> Scanned:
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
    log_decays = g.view(*value.shape[:3], -1)
    return steps.delta_rule(query, key, value, log_decays, beta[..., None]).to(dtype), steps.state


def selective_scan(steps: Steps, hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, **kwargs) -> Scanned:
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
        given = hidden_states, dt, A, B, C, D, z, delta_bias
        return steps.next_head(lambda of_head: selective_scan(of_head, *given)[0]), steps.state[:, 0]
    dt = functional.softplus(dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[:, None]).float()
    x, dt, B, C = (part.transpose(1, 2) for part in (hidden_states, dt, B, C))
    keys = dt[..., None] * B.float()[:, :, None]
    output = steps.scan(dt[..., None] * A.float(), x.float(), keys, C).transpose(1, 2)
    output = output if D is None else output + hidden_states * D[:, None]
    output = output if z is None else output * functional.silu(z)
    return output.to(hidden_states.dtype), steps.state


def state_space(steps: Steps, hidden_states, dt, A, B, C, D=None, dt_bias=None, **kwargs) -> Scanned:
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
    output = steps.scan(dt.float() * A.float()[:, None, None], hidden_states, dt * B[..., None, :], C)
    output = output if D is None else output + hidden_states * D[:, None]
    return output.to(hidden_states.dtype), steps.state
