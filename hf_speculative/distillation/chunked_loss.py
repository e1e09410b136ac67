"""Compute the loss of many guesses in pieces, to save memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: numbers of logits in a piece. On a CPU, they and what is made of them stay in its caches.
ON_CPU, ELSEWHERE = 1 << 17, 1 << 26

#: of `(n, vocab)` logits, and of which guesses they are, `(n,)` and `(n,)`: rows and columns. Gives the sum of their losses.
LossOfPiece = Callable[[Tensor, Tensor, Tensor], Tensor]


def summed(loss: LossOfPiece, logits: Tensor, counted: Tensor) -> Tensor:
    """The sum of `loss` over guesses.

    A loss makes about ten tensors as large as the logits, and autograd keeps them until `backward`. Here each piece is
    differentiated at once, and only the gradient is kept. That takes less memory, and on a CPU less traffic to it.

    Args:
        logits: `(batch, n, vocab)`.
        counted: `(batch, n)` bool, the guesses that count.

    Returns:
        `()`, float32. It can be differentiated by `logits`, and only once.
    """
    return _Pieces.apply(loss, logits, counted)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: LossOfPiece, logits: Tensor, counted: Tensor) -> Tensor:  # type: ignore[override]
        needs_gradient = ctx.needs_input_grad[1]
        # Half precision has no room for small gradients until they are scaled, which comes later.
        dtype = torch.float32 if logits.dtype == torch.float16 else logits.dtype
        gradient = torch.zeros_like(logits, dtype=dtype) if needs_gradient else None
        total = torch.zeros((), device=logits.device)
        numbers = ON_CPU if logits.device.type == "cpu" else ELSEWHERE
        for piece in counted.nonzero().split(max(1, numbers // logits.shape[-1])):
            rows, columns = piece.unbind(1)
            with torch.set_grad_enabled(needs_gradient):
                leaf = logits[rows, columns].detach().to(dtype).requires_grad_(needs_gradient)
                value = loss(leaf, rows, columns)
            total += value.detach()
            if gradient is not None:
                (gradient[rows, columns],) = torch.autograd.grad(value, leaf)
        # Not by `save_for_backward`: `backward` may then write into it.
        ctx.gradient, ctx.dtype = gradient, logits.dtype
        return total

    @staticmethod
    def backward(ctx: Any, of_total: Tensor):  # type: ignore[override]
        if ctx.gradient is None:
            raise RuntimeError("the loss was differentiated before, and keeps its gradient only once.")
        gradient, ctx.gradient = ctx.gradient, None
        return None, gradient.mul_(of_total).to(ctx.dtype), None
