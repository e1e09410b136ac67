"""Losses and their gradients against the papers' formulas, written out in probabilities."""

import math

import pytest
import torch
from transformers import TopPLogitsWarper

from hf_speculative.distillation import objective
from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.training.settings import NEEDS_ALL_TOKENS

VOCAB = 7
USES = [SamplingParams(*given) for given in ((1.0,), (0.6,), (1.3, 4), (0.8, 0, 0.7))]


def overlap(p, q):
    return sum(min(a, b) for a, b in zip(p, q, strict=True))


def lk(p, q):
    kl = sum(a * (a / b).log() for a, b in zip(p, q, strict=True) if a > 0)
    weight = math.exp(-3 * overlap(p, q.detach()))
    return weight * kl + (1 - weight) * (1 - overlap(p, q))


#: by name, of probabilities of one position
DEFINITIONS = {
    "forward_kl": lambda p, q: sum(a * (a / b).log() for a, b in zip(p, q, strict=True) if a > 0),
    "reverse_kl": lambda p, q: sum(b * (b / a).log() for a, b in zip(p, q, strict=True)),
    "total_variation": lambda p, q: sum((a - b).abs() for a, b in zip(p, q, strict=True)) / 2,
    "negative_log_acceptance": lambda p, q: -(overlap(p, q) + 1e-5).log(),
    "lk_hybrid": lk,
    "cross_entropy": lambda p, q: -q[p.argmax()].log(),
}
CASES = [(name, use) for name in objective.LOSSES for use in USES if not (use.cuts and name in NEEDS_ALL_TOKENS)]


@pytest.mark.parametrize(("name", "use"), CASES, ids=str)
def test_values_and_gradients_are_those_of_the_definition(name, use):
    target = torch.randn(5, VOCAB) * 2
    ours = torch.randn(5, VOCAB, requires_grad=True)
    theirs = ours.detach().double().requires_grad_()
    p = use.of_target(target)
    objective.LOSSES[name](p, use.of_draft(ours)).sum().backward()
    probs, draft_probs = p.double().exp(), (theirs / use.temperature).softmax(-1)
    values = [DEFINITIONS[name](one, other) for one, other in zip(probs, draft_probs, strict=True)]
    sum(values).backward()
    found = objective.LOSSES[name](p, use.of_draft(ours))
    torch.testing.assert_close(found.double(), torch.stack(values), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("use", USES, ids=str)
def test_the_targets_distributions_are_those_of_generate(use, target):
    ids = torch.randint(1, 61, (1, 6))
    asked = use.generate_kwargs | {"return_dict_in_generate": True, "output_scores": True}
    output = target.generate(ids, max_new_tokens=3, **asked)
    logits = target(output.sequences).logits[0, 5:-1]
    expected = torch.cat(output.scores).log_softmax(-1)
    found = use.of_target(logits)
    assert torch.equal(found.isneginf(), expected.isneginf())
    torch.testing.assert_close(found.exp(), expected.exp(), atol=1e-5, rtol=1e-4)


def test_top_p_sorts_no_large_vocabulary(monkeypatch):
    """That was half of a step for 49,152 tokens."""
    logits = 5 * torch.randn(4, 4096)
    expected = TopPLogitsWarper(0.9)(None, logits).log_softmax(-1)
    monkeypatch.setattr(torch, "sort", lambda *_, **__: pytest.fail("sorted"))
    assert torch.equal(SamplingParams(top_p=0.9).of_target(logits), expected)


@pytest.mark.parametrize(("name", "value"), [("temperature", -1), ("top_k", -2), ("top_p", 0)])
def test_settings_without_a_distribution_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        SamplingParams(**{name: value})
