"""What is recorded of a round is what the round was judged by."""

import pytest
import torch

from hf_speculative.playground.recording import NUM_LIKELIEST, WatchedRule
from hf_speculative.playground.runs import REPRODUCIBLE, Models, Settings, run
from hf_speculative.verification import RULES
from tests.support import tiny, tongues

PROMPT = "import os\n"


def records(models, **settings):
    for shown in run(models, Settings(**({"max_new_tokens": 24} | settings)), PROMPT):  # noqa: B007
        pass
    return shown


def distribution(model, ids, temperature=0.0):
    """As the target's generation config has it, which samples among 50 tokens; the likeliest one's is shown without that."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1].float()
    if not temperature:
        return logits.softmax(-1)
    return torch.where(logits >= logits.topk(50).values[-1], logits / temperature, -torch.inf).softmax(-1)


def texts_before(models, shown):
    """Of each round and place of a chain, the tokens that it follows."""
    prompt = models.tokenizer(PROMPT)["input_ids"]
    for record in shown.rounds:
        for i, place in enumerate(record.places):
            guesses = [guess.token for guess in record.guesses[:i]]
            yield record, i, place, prompt + shown.own.ids[: record.start] + guesses


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.8},
        {"temperature": 0.8, "judge": "token"},
        {"temperature": 0.8, "judge": "sampled"},
        {"temperature": 0.8, "judge": REPRODUCIBLE},
    ],
    ids=str,
)
def test_probabilities_are_the_models(models, settings):
    shown = records(models, **settings)
    temperature = settings.get("temperature", 0.0)
    num_refused = 0
    for record, i, place, before in texts_before(models, shown):
        p = distribution(models.target, before, temperature)
        assert place.target == pytest.approx({token: float(p[token]) for token in place.target}, abs=1e-4)
        assert set(p.topk(NUM_LIKELIEST).indices.tolist()) <= set(place.target)
        if i < len(record.guesses):
            q = distribution(models.draft, before, temperature)
            assert place.draft == pytest.approx({token: float(q[token]) for token in place.draft}, abs=1e-4)
            assert record.guesses[i].token in place.draft
        else:
            assert place.draft is None and place.residual is None
        num_refused += i == record.num_from_draft and bool(place.guesses)
    assert num_refused


@pytest.mark.parametrize("judge", ["token", "block"])
def test_what_is_drawn_after_a_refusal_is_in_the_residual(models, judge):
    shown = records(models, temperature=0.8, judge=judge)
    num_refused = 0
    for record, i, place, before in texts_before(models, shown):
        if place.residual is None:
            continue
        claim = 1.0 if judge == "token" or i == 0 else record.guesses[i - 1].chance
        p, q = distribution(models.target, before, 0.8), distribution(models.draft, before, 0.8)
        left = (claim * p - q).clamp(min=0)
        left = {token: float(left[token] / left.sum()) for token in place.residual}
        assert place.residual == pytest.approx(left, abs=2e-3)
        if i == record.num_from_draft and not record.is_cut:
            num_refused += 1
            assert place.residual[place.token] > 0
    assert num_refused


def test_guesses_that_were_kept_are_the_text_s(models):
    shown = records(models, temperature=0.5)
    for record in shown.rounds:
        kept = [guess.token for guess in record.guesses if guess.is_kept]
        assert kept[: record.num_from_draft] == record.tokens[: record.num_from_draft]
        assert [guess.parent for guess in record.guesses] == list(range(-1, len(record.guesses) - 1))
        assert record.places[record.ends_at].token == record.tokens[record.ends_at]
    assert sum(len(record.guesses) for record in shown.rounds) == shown.statistics.num_draft_tokens
    assert shown.statistics.num_accepted_draft_tokens == sum(len(record.tokens) - 1 for record in shown.rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_trees_show_the_path_that_was_kept(temperature):
    target = tiny.llama(vocab_size=300)
    models = Models(target, tongues.byte_level(300))
    shown = records(models, method="recycling", temperature=temperature, max_new_tokens=64, num_draft_tokens=12, seed=1)
    trees = [record for record in shown.rounds if record.is_tree]
    assert trees
    prompt = models.tokenizer(PROMPT)["input_ids"]
    for record in trees:
        assert len(record.places) == record.num_from_draft + 1 or record.is_cut
        for i, place in enumerate(record.places):
            before = prompt + shown.own.ids[: record.start] + record.tokens[:i]
            p = distribution(target, before, temperature)
            assert place.target == pytest.approx({token: float(p[token]) for token in place.target}, abs=1e-4)
            assert all(record.guesses[guess].token in place.target for guess in place.guesses)


def test_a_watched_rule_says_what_the_rule_says():
    for kind in RULES.values():
        rule, watched = kind(), WatchedRule(kind())
        for name in ("lossless", "reads_draft_probs", "emits_draws", "takes_trees"):
            assert getattr(watched, name) == getattr(rule, name)
