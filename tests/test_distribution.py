"""The exact distribution, through the public `generate`: that of fresh forwards, over all outcomes of all random decisions.

Whether the sampler's own decisions are as random as they should be is left to samples, by a chi-squared test. Seeds are fixed.
"""

import copy
import dataclasses

import pytest
import torch

import hf_speculative as hs
from hf_speculative.schedules import ConfidenceStop, Constant, Heuristic
from hf_speculative.verification import BlockVerification, SampledVerification, TokenVerification, token
from hf_speculative.verification.residual import draw_next_token
from tests.support import distributions, tiny, trees
from tests.support.cases import a_third
from tests.support.distributions import NEW, PROMPTS, SETTINGS, VOCAB, assert_all_found, assert_exact
from tests.support.enumeration import enumerate_texts

RULES = {"block": BlockVerification(), "token": TokenVerification()}
SCHEDULES = {"confidence": ConfidenceStop(Constant(4), 0.5), "heuristic": Heuristic(2)}


@pytest.fixture(scope="module")
def pair():
    target = tiny.llama(seed=3, vocab_size=VOCAB, layers=1, hidden=16)
    return target, tiny.noisy_copy(target, noise=0.4, seed=5)


@pytest.mark.parametrize(
    ("rule", "name"), [*(("block", name) for name in SETTINGS), ("token", "temperature and top_k"), ("token", "a stop")]
)
def test_sampling_with_a_draft_model(pair, rule, name):
    config = hs.SpeculativeConfig(rule=RULES[rule], num_draft_tokens=3)
    assert_exact(pair[0], {"draft_model": pair[1], "speculative_config": config}, **SETTINGS[name])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sampling_under_every_schedule(pair, schedule):
    config = hs.SpeculativeConfig(schedule=SCHEDULES[schedule])
    assert_exact(pair[0], {"draft_model": pair[1], "speculative_config": config}, top_k=3)


def test_sampling_with_prompt_lookup(pair):
    """By samples: what is guessed depends on how other rows went on, so that a row's outcomes cannot be enumerated alone."""
    drafts = {"prompt_lookup_num_tokens": 3, "num_assistant_tokens_schedule": "constant"}
    for prompt in ((5, 2, 3, 5, 2), (4, 4)):
        with hs.record() as stats:
            found = []
            for _ in range(8):
                found += distributions.continuations(pair[0], drafts, [prompt] * 500, top_k=3)
        assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
        distributions.assert_samples(found, distributions.exact_distribution(pair[0], prompt, top_k=3))


@pytest.fixture(scope="module")
def broken(pair):
    """A draft whose logits are NaN after one of the tokens."""
    draft = copy.deepcopy(pair[1])
    with torch.no_grad():
        draft.model.embed_tokens.weight[2] = torch.nan
    return draft


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_broken_draft(pair, broken, rule):
    config = hs.SpeculativeConfig(rule=RULES[rule], num_draft_tokens=3)
    assert_exact(pair[0], {"draft_model": broken, "speculative_config": config}, ((5, 1, 3, 1), (4, 6)), top_k=3)


def test_padded_draft_vocabulary():
    """The target has a token that the draft does not know: it is emitted as often as it should be."""
    target, narrow = (tiny.llama(seed=3, vocab_size=size, layers=1, hidden=16) for size in (41, 40))
    prompts = ((1, 2, 3, 1), (4, 2))
    likely = max(distributions.exact_distribution(target, prompts[0], top_k=3).items(), key=lambda item: item[1])[0][0]
    with torch.no_grad():  # a token that is often next changes places with the one that the draft lacks
        target.lm_head.weight[[likely, 40]] = target.lm_head.weight[[40, likely]]
    found = assert_exact(target, {"draft_model": narrow, "num_draft_tokens": 3}, prompts, top_k=3)
    assert any(40 in text for texts in found for text in texts)


def test_num_return_sequences(pair):
    prompt = torch.tensor([PROMPTS[0]])
    settings = {"do_sample": True, "top_k": 3, "num_draft_tokens": 3, "max_new_tokens": NEW, "pad_token_id": 0}

    def call(rows):
        out = hs.generate(pair[0], prompt, draft_model=pair[1], num_return_sequences=len(rows), **settings)
        return [tuple(row) for row in out[:, prompt.shape[1] :].tolist()]

    (found,) = enumerate_texts(call, 1)
    assert_all_found(found, distributions.exact_distribution(pair[0], PROMPTS[0], top_k=3))


def forgets_the_residual(draft, target_probs, residual, *args, **kwargs):
    """Draws from p where a draft token was rejected."""
    return draw_next_token(draft, target_probs, torch.zeros_like(residual), *args, **kwargs)


class JudgesByAnother(BlockVerification):
    """Compares with what the draft would say a little hotter than it was drawn."""

    def __call__(self, draft, target_probs, sampler):
        hotter = draft.dense_probs(target_probs) ** 0.95
        judged = dataclasses.replace(draft, probs=hotter / hotter.sum(-1, keepdim=True))
        return super().__call__(judged, target_probs, sampler)


@pytest.mark.parametrize("rule", [TokenVerification, JudgesByAnother])
def test_control_a_rule_that_is_not_exact_is_caught(pair, rule, monkeypatch):
    # not the function that block verification has imported
    monkeypatch.setattr(token, "draw_next_token", forgets_the_residual)
    config = hs.SpeculativeConfig(rule=rule(), num_draft_tokens=3)
    with pytest.raises(AssertionError, match="too probable"):
        assert_exact(pair[0], {"draft_model": pair[1], "speculative_config": config}, top_k=3)


@pytest.fixture(scope="module")
def drawn(pair):
    torch.manual_seed(1234)
    return distributions.sample(pair[0], {"draft_model": pair[1]}, top_k=3)


@pytest.mark.slow
def test_samples(pair, drawn):
    for prompt, samples in drawn:
        distributions.assert_samples(samples, distributions.exact_distribution(pair[0], prompt, top_k=3))


@pytest.mark.slow
def test_control_biased_samples_are_caught(pair, drawn):
    """The same test fails where they should come from slightly other settings (TV about 0.04)."""
    prompt, samples = drawn[0]
    distribution = distributions.exact_distribution(pair[0], prompt, top_k=3)
    shifted = distributions.exact_distribution(pair[0], prompt, temperature=2.6, top_k=3)
    distance = sum(abs(distribution.get(c, 0) - shifted.get(c, 0)) for c in {*distribution, *shifted}) / 2
    assert 0.03 < distance < 0.05
    with pytest.raises(AssertionError):
        distributions.assert_samples(samples, shifted)


@pytest.mark.release  # it draws after every draft token, used or not, which test_rules.py enumerates for a round
@pytest.mark.parametrize("is_broken", [False, True])
def test_sampled_verification(pair, broken, is_broken):
    config = hs.SpeculativeConfig(rule=SampledVerification(), num_draft_tokens=3)
    draft = {"draft_model": broken if is_broken else pair[1], "speculative_config": config}
    for prompt, samples in distributions.sample(pair[0], draft, top_k=3):
        distributions.assert_samples(samples, distributions.exact_distribution(pair[0], prompt, top_k=3))


class WholeTrees(Constant):
    """The room of a row counts the tokens of a path, not their siblings."""

    def plan(self, batch):
        return [self.num_tokens if room else 0 for room in self.rooms(batch)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", a_third(["block", "sampled"]))
def test_drawn_trees(pair, rule):
    """Again too much to enumerate here: tests/verification/test_trees.py does so."""
    after = pair[1](torch.arange(VOCAB)[:, None]).logits[:, 0].detach()  # of the newest token alone
    drafter = trees.DrawingDrafter(after, [-1, 0, -1, 2])
    config = {"draft_model": drafter, "speculative_config": hs.SpeculativeConfig(rule=rule, schedule=WholeTrees(4))}
    with hs.record() as statistics:
        drawn = distributions.sample(pair[0], {**config}, top_k=3)
    assert statistics.mean_acceptance_length > 1.4
    for prompt, samples in drawn:
        distributions.assert_samples(samples, distributions.exact_distribution(pair[0], prompt, top_k=3))
