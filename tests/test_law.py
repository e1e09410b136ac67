"""The exact law, through the public `generate`: enumerated from fresh forwards, compared by a chi-squared test.

With 27 to 243 cells, 16,640 samples see a bias of total variation 0.05 with probability 0.99 at a false alarm rate of 1e-4
(noncentral chi-squared). Seeds are fixed.
"""

import copy
import itertools

import pytest
import tiny
import torch
from laws import assert_law
from scipy import stats
from transformers import LogitsProcessorList

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.schedules import ConfidenceStop, Constant, Heuristic
from hf_speculative.verification import BlockVerification, SampledVerification, TokenVerification

VOCAB, NEW, SAMPLES = 7, 5, 16_640


@pytest.fixture(scope="module")
def pair():
    target = tiny.llama(seed=3, vocab_size=VOCAB, layers=1, hidden=16)
    return target, tiny.noisy_copy(target, noise=0.4, seed=5)


@torch.no_grad()
def exact_law(model, prompt, eos=None, **settings) -> dict[tuple, float]:
    """Every continuation's probability: fresh forwards, transformers' own processors, one prefix at a time."""
    config = copy.deepcopy(model.generation_config)
    unused = config.update(**settings, do_sample=True, eos_token_id=eos)
    assert not unused
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        config, input_ids_seq_length=len(prompt), logits_processor=LogitsProcessorList(), device="cpu", model_kwargs={}
    )
    law, ended = {(): 1.0}, {}
    for _ in range(NEW):
        prefixes = list(law)
        ids = torch.tensor([[*prompt, *prefix] for prefix in prefixes])
        probs = processors(ids, model(ids).logits[:, -1].float()).softmax(-1).double()
        longer = {}
        for prefix, row in zip(prefixes, probs, strict=True):
            for token in row.nonzero().flatten().tolist():
                goes_to = ended if token == eos else longer
                goes_to[(*prefix, token)] = law[prefix] * row[token].item()
        law = longer
    return law | ended


def sample(target, draft, eos=None, rows=((5, 2, 3, 1), (4, 6)), **settings):
    """`SAMPLES` continuations of each of two unequal prompts, all in one batch, both kinds of rows interleaved."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows]).repeat(SAMPLES, 1)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]).repeat(SAMPLES, 1)
    out = hs.generate(
        target,
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        max_new_tokens=NEW,
        eos_token_id=eos,
        pad_token_id=0,
        **draft,
        **settings,
    )
    new = out[:, width:].tolist()
    if eos is not None:
        new = [row[: row.index(eos) + 1] if eos in row else row for row in new]
    return [(row, [tuple(tokens) for tokens in new[i :: len(rows)]]) for i, row in enumerate(rows)]


SETTINGS = {
    "temperature and top_k": {"temperature": 1.5, "top_k": 3},
    "top_p": {"temperature": 0.8, "top_p": 0.8, "top_k": 0},
    "repetition penalty": {"repetition_penalty": 1.6, "top_k": 3},
    "no repeated bigrams, min_p": {"no_repeat_ngram_size": 2, "min_p": 0.1, "top_k": 3},
    "a stop": {"top_k": 3, "eos": 4},
}


RULES = {"block": BlockVerification(), "token": TokenVerification(), "sampled": SampledVerification()}


def first_of(cases):
    """The first of many cases as they are, the others slow: test_rules.py enumerates each rule in any case."""
    return [pytest.param(*case, marks=[pytest.mark.slow] * (i > 0)) for i, case in enumerate(cases)]


@pytest.mark.parametrize(("rule", "name"), first_of(itertools.product(("block", "token"), SETTINGS)))
def test_sampling_with_a_draft_model(pair, rule, name):
    settings = SETTINGS[name]
    # Bigrams of the padding count as seen in plain generate, too: rows without padding for that one.
    rows = ((5, 2, 3, 1), (4, 6, 1, 2)) if "no_repeat_ngram_size" in settings else ((5, 2, 3, 1), (4, 6))
    config = SpeculativeConfig(rule=RULES[rule], num_draft_tokens=3)
    with hs.record() as statistics:
        drawn = sample(pair[0], {"draft_model": pair[1], "speculative_config": config}, rows=rows, **settings)
    assert 0.2 < statistics.draft_acceptance_rate < 0.95
    for prompt, samples in drawn:
        assert_law(samples, exact_law(pair[0], prompt, **settings))


SCHEDULES = {"confidence": ConfidenceStop(Constant(4), 0.5), "heuristic": Heuristic(2)}


@pytest.mark.parametrize("schedule", first_of([[name] for name in SCHEDULES]))
def test_sampling_under_every_schedule(pair, schedule):
    config = SpeculativeConfig(schedule=SCHEDULES[schedule])
    for prompt, samples in sample(pair[0], {"draft_model": pair[1], "speculative_config": config}, top_k=3):
        assert_law(samples, exact_law(pair[0], prompt, top_k=3))


def test_sampling_with_prompt_lookup(pair):
    rows = ((5, 2, 3, 5, 2), (4, 4))
    for prompt, samples in sample(pair[0], {"prompt_lookup_num_tokens": 3}, rows=rows, top_k=3):
        assert_law(samples, exact_law(pair[0], prompt, top_k=3))


@pytest.mark.slow
def test_sampled_verification_of_a_draft_model(pair):
    config = SpeculativeConfig(rule=SampledVerification(), num_draft_tokens=3)
    for prompt, samples in sample(pair[0], {"draft_model": pair[1], "speculative_config": config}, top_k=3):
        assert_law(samples, exact_law(pair[0], prompt, top_k=3))


@pytest.mark.slow  # test_equality.py compares it token for token
def test_reproducible_sampling_has_the_law_too(pair):
    for prompt, samples in sample(pair[0], {"draft_model": pair[1], "reproducible": True}, top_k=3):
        assert_law(samples, exact_law(pair[0], prompt, top_k=3))


@pytest.mark.parametrize("rule", first_of([[name] for name in RULES]))
def test_a_broken_draft(pair, rule):
    """Its logits are NaN after one of the tokens."""
    draft = copy.deepcopy(pair[1])
    with torch.no_grad():
        draft.model.embed_tokens.weight[2] = torch.nan
    config = SpeculativeConfig(rule=RULES[rule], num_draft_tokens=3)
    rows = ((5, 1, 3, 1), (4, 6))
    for prompt, samples in sample(pair[0], {"draft_model": draft, "speculative_config": config}, rows=rows, top_k=3):
        assert_law(samples, exact_law(pair[0], prompt, top_k=3))


def test_padded_draft_vocabulary():
    """The target has a token that the draft does not know: it is emitted as often as it should be."""
    target, narrow = (tiny.llama(seed=3, vocab_size=size, layers=1, hidden=16) for size in (41, 40))
    rows = ((1, 2, 3, 1), (4, 2))
    likely = max(exact_law(target, rows[0], top_k=3).items(), key=lambda item: item[1])[0][0]
    with torch.no_grad():  # a token that is often next changes places with the one that the draft lacks
        target.lm_head.weight[[likely, 40]] = target.lm_head.weight[[40, likely]]
    drawn = sample(target, {"draft_model": narrow, "num_draft_tokens": 3}, rows=rows, top_k=3)
    assert any(40 in tokens for _, samples in drawn for tokens in samples)
    for prompt, samples in drawn:
        assert_law(samples, exact_law(target, prompt, top_k=3))


def test_num_return_sequences(pair):
    out = hs.generate(
        pair[0],
        input_ids=torch.tensor([[5, 2, 3, 1]]),
        draft_model=pair[1],
        do_sample=True,
        top_k=3,
        num_return_sequences=SAMPLES,
        max_new_tokens=NEW,
        pad_token_id=0,
    )
    assert_law([tuple(row) for row in out[:, 4:].tolist()], exact_law(pair[0], (5, 2, 3, 1), top_k=3))


def test_control_a_biased_law_is_caught(pair):
    """The same test fails when the samples come from slightly other settings (TV about 0.05)."""
    (prompt, samples), _ = sample(pair[0], {"draft_model": pair[1]}, temperature=1.8, top_k=3)
    law, shifted = exact_law(pair[0], prompt, top_k=3), exact_law(pair[0], prompt, temperature=1.8, top_k=3)
    distance = sum(abs(law.get(c, 0) - shifted.get(c, 0)) for c in {*law, *shifted}) / 2
    assert 0.02 < distance < 0.08
    with pytest.raises(AssertionError):
        assert_law(samples, law)


def test_the_sample_size_has_the_power_it_claims():
    """n = lambda / (4 TV^2), with lambda the noncentrality that is detected with probability 0.99."""
    for cells in (27, 81, 243):
        df = cells - 1
        threshold = stats.chi2.isf(1e-4, df)
        assert stats.ncx2.sf(threshold, df, SAMPLES * 4 * 0.05**2) > 0.99
    assert len(list(itertools.product(range(3), repeat=NEW))) == 243
