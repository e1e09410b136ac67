"""The loss of a student: between its guesses and the target's distributions, summed over what it guesses.

Losses take log-probabilities `p` of the target and `q` of the draft, both `(..., vocab)`, and give `(...)`. A token that p
rules out has -inf; q has no -inf. Only q has gradients. The chance that a token drawn from q is accepted is sum(min(p, q))
(Leviathan et al. 2023, section 3.1): the *acceptance* in these formulas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .sampling_params import SamplingParams
from .teacher import Prediction, Student, TeacherOutputs

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


#: keeps the logarithm finite where nothing is accepted, as speculators' `nla`
LEAST_ACCEPTANCE = 1e-5
#: how soon the hybrid turns from KL to total variation as the acceptance grows (LK losses, arXiv 2602.23881)
ETA = 3.0


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """The chance that a token of the draft is accepted: sum(min(p, q))."""
    return torch.minimum(p.exp(), q.exp()).sum(-1)


def agreement(p: Tensor, q: Tensor) -> Tensor:
    """1 where the likeliest token of the draft is the target's, as greedy decoding accepts it, else 0: without a gradient."""
    return (p.argmax(-1) == q.argmax(-1)).float()


def forward_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q): the classic loss of distillation (DistillSpec, arXiv 2310.08461)."""
    return torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1)  # 0 times infinity is 0


def reverse_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(q || p): forgives what the draft leaves out, and nothing that the target rules out, where it is infinite."""
    return (q.exp() * (q - p)).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """1 - acceptance: the chance of a rejection itself. Its gradient vanishes where p and q hardly overlap."""
    return 1 - acceptance(p, q)


def negative_log_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """-log(acceptance): the gradient of total variation over the acceptance, so that it does not vanish (LK losses)."""
    return -torch.log(acceptance(p, q) + LEAST_ACCEPTANCE)


def lk_hybrid(p: Tensor, q: Tensor) -> Tensor:
    """w KL(p || q) + (1 - w) total variation, w = exp(-3 acceptance), without a gradient of its own (LK losses).

    It begins as KL, which pulls from afar, and ends as the chance of a rejection.
    """
    accepted = acceptance(p, q)
    weight = torch.exp(-ETA * accepted.detach())
    return weight * forward_kl(p, q) + (1 - weight) * (1 - accepted)


def cross_entropy(p: Tensor, q: Tensor) -> Tensor:
    """-log q of the target's likeliest token: for greedy decoding alone."""
    return -q.gather(-1, p.argmax(-1, keepdim=True))[..., 0]


Loss = Callable[[Tensor, Tensor], Tensor]
_ALL = (lk_hybrid, forward_kl, reverse_kl, total_variation, negative_log_acceptance, cross_entropy)
LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in _ALL}


@dataclass(frozen=True)
class Objective:
    """What a student is trained for.

    Attributes:
        loss: between two distributions.
        use: how the target will be sampled from.
    """

    student: Student
    loss: Loss
    use: SamplingParams

    def __call__(self, outputs: Any, lesson: TeacherOutputs) -> Tensor:
        """The weighted sum of the losses of all guesses that count, `()`; `outputs` are those of the student's module."""
        predictions = self.student.predictions(outputs, lesson)
        return sum((self._summed(prediction, lesson) for prediction in predictions), lesson.logits.new_zeros(()))

    def _summed(self, prediction: Prediction, lesson: TeacherOutputs) -> Tensor:
        """The loss of one prediction, summed over the guesses that count."""
        last = lesson.ids.shape[1] - 1  # which never counts: nothing follows
        positions = prediction.positions.clamp(max=last)

        def of_piece(drafted: Tensor, rows: Tensor, guesses: Tensor) -> Tensor:
            logits = lesson.logits[rows, positions[rows, guesses]]
            return (prediction.weights[rows, guesses] * self._losses(logits, drafted)).sum()

        return summed(of_piece, prediction.logits, lesson.counted.gather(1, positions) & (prediction.weights != 0))

    def _losses(self, logits: Tensor, drafted: Tensor) -> Tensor:
        """The loss of each guess, `(n,)`; 0 where all that the target allows is what the draft cannot say.

        Args:
            logits: `(n, vocab)` of the target.
            drafted: `(n, drafted)` of the draft.
        """
        p, vocabulary = self.use.of_target(logits), self.student.vocabulary
        if vocabulary is not None:
            p = p[:, vocabulary.to(p.device)]
        elif p.shape[1] != drafted.shape[1]:  # one of the two is padded further
            width = min(p.shape[1], drafted.shape[1])
            p, drafted = p[:, :width], drafted[:, :width]
        if p.shape[1] == logits.shape[1]:
            return self.loss(p, self.use.of_draft(drafted))
        mass = p.logsumexp(-1, keepdim=True)
        in_vocabulary = ~mass[:, 0].isneginf()
        p, drafted = (p - mass)[in_vocabulary], drafted[in_vocabulary]
        found = self.loss(p, self.use.of_draft(drafted))
        return found.new_zeros(len(logits)).index_put((in_vocabulary,), found)
