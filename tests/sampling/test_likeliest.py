"""Top-k and top-p without sorting give what transformers gives, bit for bit."""

from functools import partial

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hf_speculative.sampling.likeliest import few_of, largest, top_k_then_p, top_p
from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.sampling.samplers import DRAWN, Independent
from hf_speculative.types import dense

VOCAB = 17_000


FLAT = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
SCORES = {
    "flat": FLAT,
    "peaked": FLAT * 6,
    "high": FLAT * 6 + 1000,
    "ties": (FLAT * 6).round(),
    "allowed by a grammar": (FLAT * 6).masked_fill(torch.arange(VOCAB) % 50 > 0, -torch.inf),
    "one token": torch.full((4, VOCAB), -torch.inf).index_fill(1, torch.tensor(5), 0.0),
    "no distribution": (FLAT * 6).index_fill(0, torch.tensor(3), torch.nan),
    "nothing allowed": (FLAT * 6).index_fill(0, torch.tensor([0, 2]), -torch.inf),
}


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("kind", SCORES)
def test_equals_transformers(kind, threshold):
    for options in ({}, {"min_tokens_to_keep": 7}, {"filter_value": -5.0}, {"min_tokens_to_keep": 300}):
        processor = TopPLogitsWarper(threshold, **options)
        expected, given = processor(None, SCORES[kind].clone()), SCORES[kind].clone()
        assert torch.equal(top_p(processor, given).nan_to_num(9.0), expected.nan_to_num(9.0))
        assert torch.equal(given.nan_to_num(), SCORES[kind].nan_to_num()), "it does not write to what it is given"


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("kind", SCORES)
def test_one_search_for_top_k_and_top_p_equals_both(kind, threshold):
    for num, options in (
        (1, {}),
        (50, {}),
        (50, {"min_tokens_to_keep": 60}),
        (300, {"filter_value": -5.0}),
        (9_000, {}),
    ):
        processors = TopKLogitsWarper(num, **options), TopPLogitsWarper(threshold, **options)
        expected = processors[1](None, processors[0](None, SCORES[kind].clone()))
        given = SCORES[kind].clone()
        assert torch.equal(top_k_then_p(*processors, given).nan_to_num(9.0), expected.nan_to_num(9.0))
        assert torch.equal(given.nan_to_num(), SCORES[kind].nan_to_num()), "it does not write to what it is given"


def test_top_p_right_after_top_k_shares_its_search(monkeypatch):
    """And nothing else does: the search of one is of no use to the other where scores change between them."""
    top_k, after, asked = TopKLogitsWarper(5), TopPLogitsWarper(0.9), []
    monkeypatch.setattr(TopKLogitsWarper, "__call__", lambda self, *args: asked.append(len(args[1])) or args[1])
    for processors, times in (
        ([top_k, after], 0),
        ([after, top_k], 1),
        ([top_k, TemperatureLogitsWarper(2.0), after], 1),
    ):
        asked.clear()
        Processors(processors, 1)._apply(None, SCORES["peaked"][:, None].clone())
        assert len(asked) == times


def test_where_adding_in_another_order_could_matter_transformers_decides(monkeypatch):
    """Sixteen tokens of one sixteenth: after eight of them, the sum is the threshold but for rounding."""
    likely = torch.arange(16) * -1e-6
    given = torch.cat([likely, torch.full((VOCAB - 16,), -40.0)])[None].repeat(2, 1)
    given[1, :16] = torch.arange(16) * -3.0
    processor, asked = TopPLogitsWarper(0.5), []

    monkeypatch.setattr(TopPLogitsWarper, "__call__", lambda self, *args: asked.append(len(args[1])) or args[1])
    found = top_p(processor, given)
    assert asked == [1], "the first row alone"
    assert found[1].isfinite().sum() == 1


def test_draws_by_probability_and_never_what_has_none():
    probs = torch.zeros(1, 20_000, 40)
    probs[..., [7, 10, 38]] = torch.tensor([0.5, 1.0, 0.5])  # not normalised
    sampler = Independent(None, 40, torch.Generator().manual_seed(0), DRAWN)
    counts = torch.bincount(sampler.categorical(probs)[0], minlength=40)[[7, 10, 38]]
    assert counts.sum() == 20_000
    expected = torch.tensor([5_000.0, 10_000, 5_000])
    assert ((counts - expected).square() / expected).sum() < 13.8, "chi-squared, 2 degrees of freedom, 0.1 %"


@pytest.mark.parametrize("num", [1, 7, 50, 300])
@pytest.mark.parametrize("kind", SCORES)
def test_the_likeliest_are_those_of_topk(kind, num):
    for scores in (SCORES[kind], SCORES[kind][:, :-23], SCORES[kind].bfloat16()):
        values, ids = largest(scores, num)
        assert torch.equal(values.nan_to_num(9.0), scores.topk(num).values.nan_to_num(9.0))
        assert torch.equal(scores.gather(1, ids).nan_to_num(9.0), values.nan_to_num(9.0))
        assert all(len(row.unique()) == num for row in ids)


FILTERS = {
    "top-k": [TopKLogitsWarper(50)],
    "the likeliest": [TopKLogitsWarper(1)],
    "both": [TopKLogitsWarper(50), TopPLogitsWarper(0.95)],
    "few of both": [TopKLogitsWarper(50), TopPLogitsWarper(0.3)],
    "at least": [TopKLogitsWarper(50, min_tokens_to_keep=60), TopPLogitsWarper(0.3, min_tokens_to_keep=60)],
    "top-p": [TopPLogitsWarper(0.95)],
    "few of top-p": [TopPLogitsWarper(0.3)],
}


NOT_FINITE = ("one token", "no distribution", "nothing allowed")


def whole(processors, logits):
    scores = logits.float()
    for processor in processors:
        scores = processor(None, scores)
    return scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", SCORES)
def test_the_few_that_are_left_are_those_of_transformers(kind, name, dtype):
    logits, scaling = SCORES[kind].to(dtype), TemperatureLogitsWarper(0.8)
    expected = whole([scaling, *FILTERS[name]], logits)
    found = few_of([scaling], FILTERS[name], logits, partial(whole, [scaling, *FILTERS[name]]))
    assert found is None or torch.equal(dense(found), expected)
    assert (found is None) == (kind in NOT_FINITE or (expected > -torch.inf).any(0).sum() > VOCAB / 8)


def test_what_cannot_be_told_from_the_likeliest_is_left_to_transformers():
    few = lambda *filters, logits=SCORES["peaked"]: few_of([], filters, logits, partial(whole, filters))  # noqa: E731
    assert few(TopKLogitsWarper(50)) is not None
    assert few(TopKLogitsWarper(50, filter_value=-5.0)) is None
    assert few(TopKLogitsWarper(VOCAB // 4)) is None
    assert few(TopKLogitsWarper(50), logits=SCORES["no distribution"]) is None
    assert few(TopKLogitsWarper(50), logits=torch.zeros(2, VOCAB)) is None, "all are equally likely"
    cold, top_k = TemperatureLogitsWarper(6e-38), TopKLogitsWarper(50)
    assert few_of([cold], [top_k], SCORES["peaked"], partial(whole, [cold, top_k])) is None, "a few infinities"
