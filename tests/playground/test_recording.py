"""What is recorded of a round is what the round was judged by."""

import pytest
import torch

from hf_speculative.playground.recording import NUM_LIKELIEST
from hf_speculative.playground.runs import REPRODUCIBLE

PROMPT = "import os\n"


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


JUDGES = ({}, {"judge": "token"}, {"judge": "sampled"}, {"judge": REPRODUCIBLE})


@pytest.mark.parametrize("settings", [{}, *({"temperature": 0.8} | judge for judge in JUDGES)], ids=str)
def test_probabilities_are_the_models(models, decoded, settings):
    shown = decoded(PROMPT, max_new_tokens=24, **settings)
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
