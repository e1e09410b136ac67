"""Where there is no distribution to draw from: the error of plain decoding, and only where it gets there."""

import pytest
import torch
from transformers import set_seed

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.sampling import samplers
from hf_speculative.sampling.draws import inverse_transform
from tests.support import tiny
from tests.support.plain import NEW, LastToken, ours, plain, reproduces_plain

PROMPTS = [row[row > 0].tolist() for row in tiny.prompts(13)["input_ids"]]


@pytest.mark.parametrize("vocab_size", [7, 61, 512, 1536, 50257])
def test_inverse_transform(vocab_size):
    """The token at which the sums of all probabilities pass the number; at the ends, none of probability 0."""
    probs = torch.randn(5, 3, vocab_size).mul(4).softmax(-1)
    probs[probs < probs.mean()], probs[..., 2], probs[..., -3:], probs[..., 0] = 0, 0.1, 0, 0
    sums = probs.cumsum(-1, dtype=torch.float64)
    for number in (0.0, 0.3, 0.77, 1 - 2**-53):
        tokens = inverse_transform(probs, torch.full_like(sums[..., :1], number))[..., None]
        mass, before = (one.gather(-1, tokens) for one in (probs, sums - probs))
        assert (mass > 0).all() and ((before - number * sums[..., -1:]).abs() <= mass + 1e-6).all()


def test_a_draft_left_with_nothing_to_say_never_emits_what_is_forbidden():
    """Every allowed token is past the draft's vocabulary: its distribution was NaN, and token 0 came out."""
    target, narrow = tiny.llama(vocab_size=64), tiny.llama(vocab_size=61)
    settings = {"do_sample": True, "suppress_tokens": list(range(61)), "max_new_tokens": 40, "pad_token_id": 0}
    assert hs.generate(target, **tiny.prompts(4), **settings, draft_model=narrow)[:, 7:].min() >= 61


def nothing_after(token):
    """A grammar that has come to its end: after `token` nothing is allowed."""

    def ban(input_ids, scores):
        return scores.masked_fill((input_ids[:, -1:] == token), -torch.inf)

    return ban


@torch.no_grad()
def broken(model):
    model = tiny.noisy_copy(model, noise=0)
    model.model.norm.weight[0] = torch.nan
    return model


SOURCES = {
    "block": lambda draft: {"draft_model": draft},
    "token": lambda draft: as_keywords({"draft_model": draft, "rule": "token"}),
    "sampled": lambda draft: as_keywords({"draft_model": draft, "rule": "sampled"}),
    "reproducible": lambda draft: {"draft_model": draft, "reproducible": True},
    "prompt lookup": lambda draft: {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("source", SOURCES)
def test_no_distribution_to_draw_from(target, draft, source):
    """It came out as token 0; plain generate raises."""
    sampled = {"max_new_tokens": NEW, "pad_token_id": 0, "do_sample": True} | tiny.prompts(2)
    cases = {
        "logits are NaN": (broken(target), {}),
        "all is suppressed": (target, {"suppress_tokens": list(range(tiny.VOCAB))}),
        "a processor allows nothing": (target, {"logits_processor": [lambda ids, s: torch.full_like(s, -torch.inf)]}),
        "one is infinite": (target, {"logits_processor": [lambda ids, s: s.index_fill(1, torch.tensor(3), torch.inf)]}),
    }
    for name, (model, settings) in cases.items():
        with pytest.raises(RuntimeError, match="probability tensor"):
            model.generate(**sampled, **settings)
        with pytest.raises(RuntimeError, match="row 0: there is no distribution to draw token 1 from"):
            pytest.fail(f"{name}: {hs.generate(model, **sampled, **settings, **SOURCES[source](draft))}")


def test_no_distribution_later_on(target, twin):
    """Where plain decoding gets there, and nowhere else: not past a stop, not after a draft token that is rejected."""
    sampled = {"max_new_tokens": NEW, "pad_token_id": 0, "do_sample": True, "top_k": 4} | tiny.prompts(1)
    set_seed(1)
    said = target.generate(**sampled)[0, 7:].tolist()
    token = next(token for i, token in enumerate(said) if i > 3 and token not in said[:i])
    settings = sampled | {"reproducible": True, "draft_model": twin, "num_draft_tokens": 6}
    ban, criterion = {"logits_processor": [nothing_after(token)]}, LastToken(token)
    set_seed(1)
    with pytest.raises(RuntimeError, match=f"draw token {said.index(token) + 2} from"):
        hs.generate(target, **settings, **ban)
    for stop in ({"eos_token_id": token}, {"stopping_criteria": [criterion]}):
        set_seed(1)
        assert hs.generate(target, **settings, **ban, **stop)[0, 7:].tolist() == said[: said.index(token) + 1]
    assert max(criterion.calls) == 7 + said.index(token) + 1, "asked about no token that there is not"
    unsaid = next(token for token in range(1, tiny.VOCAB) if token not in said)
    set_seed(1)
    assert hs.generate(target, **settings, logits_processor=[nothing_after(unsaid)])[0, 7:].tolist() == said


def test_argmax_of_nothing(target, draft):
    inputs = tiny.prompts(2)
    for model, settings in ((broken(target), {}), (target, {"suppress_tokens": list(range(tiny.VOCAB))})):
        assert ours(model, inputs, draft_model=draft, **settings).tolist() == plain(model, inputs, **settings).tolist()


def test_no_distribution_in_a_batch_keeps_what_is_done(target, draft):
    prompts = [[3, 4, 5], [6, 7, 8, 9]]
    first, second = (plain(target, {"input_ids": torch.tensor([ids])})[0, len(ids) :][:8].tolist() for ids in prompts)
    token = next(token for token in second[:-1] if token not in first)
    done, settings = [], {"batch_size": 1, "max_new_tokens": 8, "do_sample": True, "top_k": 1, "draft_model": draft}
    with pytest.raises(RuntimeError, match="row 1: there is no distribution"):
        for row in hs.generate_batches(target, prompts, **settings, logits_processor=[nothing_after(token)]):
            done.append(row.index)
    assert done == [0]


@pytest.mark.parametrize("source", SOURCES)
def test_a_broken_draft_breaks_nothing(target, source):
    draft, settings = broken(target), SOURCES[source]
    inputs = tiny.prompts(3)
    assert ours(target, inputs, **settings(draft)).tolist() == plain(target, inputs).tolist()
    out = hs.generate(target, **inputs, do_sample=True, top_k=1, max_new_tokens=NEW, pad_token_id=0, **settings(draft))
    assert out.tolist() == plain(target, inputs).tolist()


def test_the_noise_is_that_of_plain_generate_under_any_default_dtype(target, draft):
    """Plain `generate` draws in the dtype of its scores."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        reproduces_plain(target, (8,), draft_model=draft, num_draft_tokens=2)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_drawn_between_results_is_not_drawn_again(target, draft):
    """Drafts look further ahead than the text goes, which the generator forgets: not if others have drawn since."""
    torch.manual_seed(0)
    settings = {"do_sample": True, "max_new_tokens": 30, "eos_token_id": [*range(1, tiny.VOCAB, 4)], "reproducible": True}
    settings["pad_token_id"] = 0
    between: set[float] = set()
    for _ in hs.generate_batches(target, PROMPTS[:3], batch_size=3, draft_model=draft, num_draft_tokens=6, **settings):
        between |= {*torch.rand(200, dtype=torch.float64).tolist()}
    assert not between & {*torch.rand(20_000, dtype=torch.float64).tolist()}


@pytest.mark.parametrize("reproducible", [True, False])
def test_noise_is_drawn_for_few_prompts_at_a_time(target, draft, monkeypatch, reproducible):
    """Each step's noise is of all rows of a window: more than are kept are drawn again for each row that starts."""
    monkeypatch.setattr(samplers, "MOST_NOISE", 4 * tiny.VOCAB * samplers.STEPS_KEPT)
    drawn, draw = [], samplers.Coupled._draw
    monkeypatch.setattr(samplers.Coupled, "_draw", lambda self, generator: drawn.append(self.shape[0]) or draw(self, generator))
    settings = {"do_sample": True, "max_new_tokens": 30, "reproducible": reproducible, "num_draft_tokens": 3}
    settings |= {"pad_token_id": 0, "eos_token_id": [7, 11, 13, 20]}
    rows = [*hs.generate_batches(target, PROMPTS * 3, batch_size=3, draft_model=draft, **settings)]
    assert {*drawn} == ({4, 3} if reproducible else set())  # of 39 prompts, 3 at a time
    assert sum(drawn) <= 4 * sum(len(row.new_ids) for row in rows)
