"""Draft tokens drawn from the draft's distribution or its likeliest: chosen by the rounds before, and exact."""

import copy
import functools
import itertools
import math
from collections import defaultdict

import pytest
import torch

import hf_speculative as hs
from hf_speculative import Draft, SpeculativeConfig
from hf_speculative.call.configuration import as_keywords
from hf_speculative.sampling.samplers import MARGIN, MeasuredChoice
from hf_speculative.verification import BlockVerification, Measured, TokenVerification
from tests.support import distributions, tiny
from tests.support.branching import Table, branches, distance, plain_sequences
from tests.support.cases import slow_but
from tests.support.plain import plain

LENGTH = 2


def proposals(q, prefix, is_likeliest):
    """All drafts after a text with their chances."""
    if is_likeliest:
        tokens = ()
        for _ in range(LENGTH):
            tokens = (*tokens, int(q(prefix + tokens).argmax()))
        return [(tokens, 1.0)]
    drafts = itertools.product(range(len(q(()))), repeat=LENGTH)
    return [(x, math.prod(q(prefix + x[:i])[token].item() for i, token in enumerate(x))) for x in drafts]


def distribution_of(rule, p, q, length, peeks=False):
    """Of the first `length` tokens over several rounds, with the choice's state in each branch; and what was chosen.

    Args:
        peeks: the choice is made when the draft is known: what has a likely first token is taken as drawn.
    """
    final, chosen, level = defaultdict(float), [], {((), (0.0, 0.0)): 1.0}
    while level:
        following = defaultdict(float)
        chosen.append({likeliest > MARGIN * drawn for _, (drawn, likeliest) in level})
        for (prefix, state), mass in level.items():
            choice = MeasuredChoice()
            choice.drawn, choice.likeliest = state
            cases = proposals(q, prefix, choice.is_likeliest and not peeks)
            tokens = torch.tensor([x for x, _ in cases])
            steps = torch.stack([torch.stack([q(prefix + x[:i]) for i in range(LENGTH)]) for x, _ in cases])
            p_probs = torch.stack([torch.stack([p(prefix + x[:i]) for i in range(LENGTH + 1)]) for x, _ in cases])
            probs, likeliest_of = (None, steps) if choice.is_likeliest and not peeks else (steps, None)
            if peeks:
                set_ones = torch.zeros_like(steps).scatter_(2, tokens[..., None], 1.0)
                probs = torch.where((tokens == steps.argmax(2))[..., None], steps, set_ones)
            draft = Draft(tokens, probs, torch.full((len(cases),), LENGTH), likeliest_of=likeliest_of)
            for verdict, weights in branches(functools.partial(Measured(rule()), draft, p_probs)):
                for b, (x, drawn) in enumerate(cases):
                    if (probability := mass * drawn * weights[b].item()) == 0:
                        continue
                    sequence = (*prefix, *x[: verdict.num_accepted[b]], verdict.next_token[b].item())
                    if len(sequence) >= length:
                        final[sequence[:length]] += probability
                        continue
                    after = copy.copy(choice)
                    after.add(*verdict.chances[b].tolist())
                    following[sequence, (round(after.drawn, 9), round(after.likeliest, 9))] += probability
        level = following
    return final, chosen


#: target and draft about which rounds disagree
PAIRS = [(Table(seed, vocab=2), Table(seed + 50, vocab=2)) for seed in (2, 7)]


@pytest.mark.parametrize("rule", [TokenVerification, BlockVerification])
def test_the_output_has_exactly_the_targets_distribution(rule):
    for p, q in PAIRS:
        found, chosen = distribution_of(rule, p, q, length=4)
        assert distance(found, plain_sequences(p, 4)) < 1e-12
        assert chosen[0] == {False}, "drawn at first"
        assert chosen[1] == {False, True}, "the choice differs between branches"


def test_control_a_choice_that_looks_at_the_draft_is_caught():
    """What turns out not to be the likeliest is judged as if it had been set."""
    found = [(distribution_of(TokenVerification, p, q, 4, peeks=True)[0], plain_sequences(p, 4)) for p, q in PAIRS]
    assert max(distance(*both) for both in found) > 1e-3


def length_of(target, draft, **kwargs):
    torch.manual_seed(0)
    with hs.record() as stats:
        settings = {"do_sample": True, "max_new_tokens": 40, "pad_token_id": 0, "num_draft_tokens": 3, "tree_top_k": 1}
        hs.generate(target, **tiny.prompts(8), draft_model=draft, **as_keywords(settings | kwargs))
    return stats.mean_acceptance_length


@pytest.mark.parametrize("flattened", [True, False])
def test_the_better_one_is_chosen(flattened):
    """A draft less sure than its target had better propose its likeliest tokens; one as unsure had better draw."""
    target = tiny.llama()
    draft = tiny.noisy_copy(target, 0.05)
    with torch.no_grad():
        if flattened:
            target.lm_head.weight.mul_(40.0)
            draft.lm_head.weight.mul_(4.0)
    methods = ("probabilistic", "greedy", "auto")
    drawn, likeliest, chosen = (length_of(target, draft, draft_sample_method=method) for method in methods)
    best, worst = max(drawn, likeliest), min(drawn, likeliest)
    assert (likeliest > drawn) == flattened and best - worst > 0.3
    assert chosen > worst + 0.6 * (best - worst)
    assert length_of(target, draft) == chosen, "by default"


@pytest.mark.parametrize("method", slow_but(["auto", "greedy"], "auto"))
def test_output_through_generate_has_the_distribution(method):
    """By chi-squared: rows of a batch choose together, from rounds that are over."""
    target = tiny.llama(vocab_size=distributions.VOCAB)
    draft = tiny.noisy_copy(target, 0.4)
    with torch.no_grad():
        draft.lm_head.weight.mul_(0.5)
    drafts = as_keywords({"draft_model": draft, "num_draft_tokens": 2, "tree_top_k": 1, "draft_sample_method": method})
    for prompt, samples in distributions.sample(target, drafts, num_samples=3000, top_k=3):
        distributions.assert_samples(samples, distributions.exact_distribution(target, prompt, top_k=3))


def test_where_it_has_no_effect(target, draft):
    call = tiny.prompts(2) | {"max_new_tokens": 4, "pad_token_id": 0} | as_keywords({"draft_sample_method": "greedy"})
    sampled = call | {"do_sample": True}
    for kwargs, message in (
        (call | {"draft_model": draft, "do_sample": False}, "no effect on greedy decoding: set `do_sample=True`"),
        (sampled | {"draft_model": draft, "reproducible": True}, "no effect on `reproducible=True`"),
        (sampled | {"prompt_lookup_num_tokens": 3}, "no effect on drafts by `prompt_lookup_num_tokens`"),
    ):
        with tiny.refused(target, message):
            hs.generate(target, **kwargs)
    with pytest.raises(ValueError, match="draft_sample_method='gready'"):
        SpeculativeConfig(draft_sample_method="gready")
    expected = plain(target, tiny.prompts(2)).tolist()
    model = hs.attach(tiny.llama(), draft, config=SpeculativeConfig(draft_sample_method="greedy"))
    assert model.generate(**tiny.prompts(2), **NEW).tolist() == expected, "attached for calls that can use it"


NEW = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
