"""Rules judge by the few tokens that can be drawn as by all of them."""

import pytest
import torch
from torch.nn import functional
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import hf_speculative as hs
from hf_speculative import Draft
from hf_speculative.sampling import logits_processors
from hf_speculative.sampling.logits_processors import REST, Processors
from hf_speculative.sampling.samplers import DRAWN, Greedy, Independent
from hf_speculative.types import Few, dense
from hf_speculative.verification import RULES, Measured, Narrowed, SampledVerification
from tests.support import tiny
from tests.support.plain import agrees

VOCAB = 40
IDS = torch.tensor([2, 3, 7, 21, 22, 39])
PARENTS = torch.tensor([[-1, -1, 0, 0], [-1, 0, 1, 2]])


def probabilities(generator, *shape):
    return torch.rand(*shape, generator=generator).softmax(-1)


def cases():
    """Target and drafts; half of the draft's tokens are none that the target can draw."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(30):
        values = torch.cat([probabilities(generator, 2, 5, len(IDS)), torch.zeros(2, 5, 1)], -1)
        tokens = torch.where(
            torch.rand(2, 4, generator=generator) < 0.5,
            IDS[torch.randint(len(IDS), (2, 4), generator=generator)],
            torch.randint(VOCAB, (2, 4), generator=generator),
        )
        yield seed, Few(values, IDS, VOCAB), tokens, probabilities(generator, 2, 4, VOCAB)


@pytest.mark.parametrize("parents", [None, PARENTS], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["drawn", "one-hot", "likeliest"])
@pytest.mark.parametrize("name", RULES)
def test_verdicts_are_those_of_whole_distributions(name, kind, parents):
    for seed, few, tokens, probs in cases():
        if kind == "likeliest":
            tokens = probs.argmax(-1)
        given = {"probs": probs if kind == "drawn" else None, "likeliest_of": probs if kind == "likeliest" else None}
        draft = Draft(tokens=tokens, num_tokens=torch.tensor([4, 3]), parents=parents, **given)
        rule = RULES[name]()
        rule = Measured(rule) if rule.reads_draft_probs else rule
        for is_greedy in (False, True):
            verdicts = [
                judge(draft, target, Greedy(None, VOCAB) if is_greedy else independent(seed))
                for judge, target in ((rule, dense(few)), (Narrowed(rule), few), (Narrowed(rule), dense(few)))
            ]
            for found in verdicts[1:]:
                for field in ("num_accepted", "next_token", "acceptance_prob", "path", "chances"):
                    one, other = getattr(verdicts[0], field), getattr(found, field)
                    assert (one is None) == (other is None)
                    assert one is None or torch.allclose(one.double(), other.double(), atol=1e-5), field


def independent(seed):
    return Independent(None, VOCAB, torch.Generator().manual_seed(seed), DRAWN)


@pytest.mark.parametrize("name", RULES)
def test_a_draft_of_fewer_tokens_and_of_half_precision(name):
    """As `Draft.dense_probs` takes them."""
    for seed, few, tokens, probs in cases():
        tokens, probs = tokens.clamp(max=29), probs[..., :30].half()
        draft = Draft(tokens, functional.pad(probs.float(), (0, VOCAB - 30)), torch.tensor([4, 3]))
        expected = RULES[name]()(draft, dense(few), independent(seed))
        found = Narrowed(RULES[name]())(Draft(tokens, probs, draft.num_tokens), few, independent(seed))
        assert found.next_token.tolist() == expected.next_token.tolist()
        assert found.num_accepted.tolist() == expected.num_accepted.tolist()


@pytest.fixture
def narrowed(monkeypatch):
    """Numbers of tokens that rounds were narrowed to."""
    sizes, init = [], Few.__init__
    monkeypatch.setattr(Few, "__init__", lambda self, *args, **kw: init(self, *args, **kw) or sizes.append(len(self.ids)))
    return sizes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "settings", [{"do_sample": False}, {"top_k": 12}, {"top_k": 12, "top_p": 0.9, "temperature": 0.7}], ids=str
)
def test_calls_equal_plain_ones(settings, rows, narrowed):
    """Tokens, and scores of the whole vocabulary, beside a criterion that reads them."""
    model = tiny.llama(vocab_size=2000)
    call = tiny.prompts(rows) | {"do_sample": True, "max_new_tokens": 14, "pad_token_id": 0} | settings
    drafting = {"draft_model": tiny.noisy_copy(model), "num_draft_tokens": 3}
    assert agrees(model, call, **drafting).num_accepted_draft_tokens
    assert narrowed and max(narrowed) <= rows * 4 * 12
    call |= {"return_dict_in_generate": True, "output_scores": True}
    read = []
    call["stopping_criteria"] = [lambda ids, scores: read.append(scores[-1].shape) or torch.zeros(len(ids), dtype=torch.bool)]
    own = {"reproducible": True} if call["do_sample"] else {}
    torch.manual_seed(0)
    plain = model.generate(**call)
    torch.manual_seed(0)
    found = hs.generate(model, **call, **drafting, **own)
    assert torch.equal(found.sequences, plain.sequences) and {*read} == {(rows, 2000)}
    for one, other in zip(found.scores, plain.scores, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_sampled_texts_do_not_depend_on_it(monkeypatch, narrowed):
    """With drafts that are drawn, and under every rule."""
    model, call = tiny.llama(vocab_size=2000), tiny.prompts(2) | {"do_sample": True, "top_k": 12, "max_new_tokens": 14}
    call |= {"draft_model": tiny.noisy_copy(model), "num_draft_tokens": 3, "pad_token_id": 0}
    for rule in RULES:
        texts = []
        for few in (Processors.narrowed, lambda self, logits: None):
            monkeypatch.setattr(Processors, "narrowed", few)
            torch.manual_seed(0)
            config = hs.SpeculativeConfig(rule=rule, draft_sample_method="probabilistic")
            texts.append(hs.generate(model, **call, speculative_config=config).tolist())
        monkeypatch.undo()
        assert texts[0] == texts[1]


def test_bits_that_are_fixed_come_from_all_tokens(narrowed):
    model = tiny.llama(vocab_size=2000)
    config = hs.SpeculativeConfig(reproducible="bitwise")
    call = {"do_sample": True, "top_k": 12, "max_new_tokens": 8, "draft_model": model, "speculative_config": config}
    hs.generate(model, **tiny.prompts(2), **call, pad_token_id=0)
    assert not narrowed


def test_few_are_not_looked_for_each_time_where_there_are_many(monkeypatch):
    processors, asked = Processors([TopPLogitsWarper(0.95)], 1), []
    monkeypatch.setattr(logits_processors, "few_of", lambda scaling, filters, logits, of_whole: asked.append(len(logits)))
    for _ in range(2 * REST + 1):
        assert processors.narrowed(torch.zeros(2, 3, 4000)) is None
    assert asked == [6, 6, 6] and processors.narrowed(torch.zeros(1, 1, 4000)) is None


@pytest.mark.parametrize(
    "processors",
    [
        [TopKLogitsWarper(5), TemperatureLogitsWarper(2.0)],
        [TopPLogitsWarper(0.9), TopKLogitsWarper(5)],
        [TemperatureLogitsWarper(0.5)],
        [TopKLogitsWarper(5), lambda ids, scores: scores],
        [],
    ],
)
def test_other_processors_see_all_tokens(processors):
    assert Processors(LogitsProcessorList(processors), 1).narrowed(torch.randn(1, 2, 1000)) is None


def test_rules_of_the_user_see_all_tokens(narrowed):
    seen = []

    class Own(SampledVerification):
        def __call__(self, draft, target_probs, sampler):
            seen.append(target_probs.shape[-1])
            return super().__call__(draft, target_probs, sampler)

    model = tiny.llama(vocab_size=2000)
    config = hs.SpeculativeConfig(rule=Own())
    call = {"do_sample": True, "top_k": 12, "max_new_tokens": 8, "draft_model": model, "speculative_config": config}
    hs.generate(model, **tiny.prompts(2), **call, pad_token_id=0)
    assert {*seen} == {2000} and not narrowed
