"""The loss in pieces is the loss of the whole."""

import weakref

import pytest
import torch

from hf_speculative.distillation import objective
from hf_speculative.distillation.sampling_params import SamplingParams

VOCAB = 11


def of_whole(p, logits, counted, weights, loss):
    rows, guesses = counted.nonzero(as_tuple=True)
    found = loss(SamplingParams().of_target(p[rows, guesses]), SamplingParams().of_draft(logits[rows, guesses]))
    return (weights[rows, guesses] * found).sum()


def in_pieces(p, logits, counted, weights, loss):
    def of_piece(drafted, rows, guesses):
        found = loss(SamplingParams().of_target(p[rows, guesses]), SamplingParams().of_draft(drafted))
        return (weights[rows, guesses] * found).sum()

    return objective.summed(of_piece, logits, counted)


@pytest.mark.parametrize("num_counted", [0, 1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", objective.LOSSES)
def test_value_and_gradient(monkeypatch, name, dtype, num_counted):
    monkeypatch.setattr(objective, "ON_CPU", 3 * VOCAB)
    p, weights = torch.randn(4, 9, VOCAB), torch.rand(4, 9)
    counted = (torch.randperm(36) < num_counted).view(4, 9)
    ours = torch.randn(4, 9, VOCAB, dtype=dtype, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    ways, loss = ((in_pieces, ours), (of_whole, theirs)), objective.LOSSES[name]
    found, expected = (f(p, x, counted, weights, loss) for f, x in ways)
    torch.testing.assert_close(found, expected)
    for total in (found, expected):
        (total / 3).backward()  # divided, as by the tokens of a step
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert not ours.grad[~counted].any()


class ModelResources:
    def __init__(self, tensor):
        self.tensor = tensor


def kept_by(f, *given):
    """Numbers that autograd keeps until `backward`, over those of the logits."""
    alive = weakref.WeakSet()

    def keep(tensor):
        kept = ModelResources(tensor)
        alive.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        total = f(*given)
    assert total.requires_grad
    return sum(kept.tensor.numel() for kept in alive) / given[1].numel()


def test_what_the_loss_is_made_of_is_not_kept():
    given = torch.randn(4, 9, VOCAB), torch.randn(4, 9, VOCAB, requires_grad=True), torch.ones(4, 9, dtype=torch.bool)
    given += torch.ones(4, 9), objective.lk_hybrid
    assert kept_by(of_whole, *given) > 5
    assert kept_by(in_pieces, *given) == 0  # but for the gradient, as large as the logits


def test_without_gradients_and_only_once():
    p, counted, weights = torch.randn(2, 3, VOCAB), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3)
    found = in_pieces(p, torch.randn(2, 3, VOCAB), counted, weights, objective.forward_kl)
    assert not found.requires_grad and found > 0
    found = in_pieces(p, torch.randn(2, 3, VOCAB, requires_grad=True), counted, weights, objective.forward_kl)
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        found.backward()


def test_small_gradients_survive_in_half_precision():
    """Scaled before they are rounded, as mixed precision means them to be."""
    logits = torch.zeros(1, 1, 3, dtype=torch.float16, requires_grad=True)
    counted = torch.ones(1, 1, dtype=torch.bool)
    total = objective.summed(lambda drafted, rows, guesses: (1e-9 * drafted.float()).sum(), logits, counted)
    (total * 2.0**16).backward()
    torch.testing.assert_close(logits.grad.float(), torch.full((1, 1, 3), 1e-9 * 2.0**16), rtol=1e-2, atol=0)
