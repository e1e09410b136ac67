"""The page without a browser: what its controls do, what it asks of others, and the film of a run."""

import pytest
import torch

from hf_speculative.playground.recording import NUM_LIKELIEST
from hf_speculative.playground.runs import REPRODUCIBLE

gr = pytest.importorskip("gradio", reason="the extra `playground` is not installed")

from hf_speculative.playground import page as module  # noqa: E402
from hf_speculative.playground.page import Page, build, look  # noqa: E402
from hf_speculative.playground.runs import Settings  # noqa: E402

VALUES = tuple(vars(Settings(max_new_tokens=12)).values())


@pytest.fixture
def frames(models, monkeypatch):
    monkeypatch.setattr(module, "FRAME", 0.0)
    return list(Page(models).frames("import os\n", False, *VALUES))


def test_frames_grow_and_end_with_the_rounds(frames):
    assert len(frames) > 12 and {len(frame) for frame in frames} == {7}
    assert all(frame[3] is frames[0][3] for frame in frames)
    assert all(frame[6] == gr.skip() for frame in frames[:-1])
    *_, stepper, slider, details = frames[-1]
    assert stepper.visible and slider.maximum == len(frames[0][3].rounds) and "hs-places" in details


def test_rounds_are_stepped_through(models, frames):
    page, shown = Page(models), frames[0][3]
    last = len(shown.rounds)
    assert [page.round(shown, number)[0] for number in (0, 2, last + 1)] == [1, 2, last]
    event = gr.EventData(None, {"round": 1, "place": 0})
    assert page.token(shown, event) == page.place(shown, 2, event) == page.round(shown, 2, 0)
    assert page.round(None, 1) == page.token(None, event) == (gr.skip(), gr.skip())
    assert page.rounds(None)[0] == gr.skip()


def test_what_is_wrong_is_said(models):
    with pytest.raises(gr.Error, match="empty"):
        next(Page(models).frames("", False, *VALUES))
    pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")
    with pytest.raises(gr.Error, match="is no grammar"):
        next(Page(models).frames("a", False, *VALUES[:-1], "/etc/schema.json"))


def test_it_is_quiet_and_serves_one_run_at_a_time(models):
    blocks = build(models, "a pair", ["import os"])
    assert blocks.analytics_enabled is False
    limits = {fn.concurrency_limit for fn in blocks.fns.values() if fn.concurrency_id == "model"}
    assert limits == {1}
    assert not [fn for fn in blocks.fns.values() if fn.api_visibility == "public"]
    theme = look()["theme"]
    assert not theme._stylesheets and "http" not in look()["css"]


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
        p, target = distribution(models.target, before, temperature), place.probs["target"]
        assert target == pytest.approx({token: float(p[token]) for token in target}, abs=1e-4)
        assert set(p.topk(NUM_LIKELIEST).indices.tolist()) <= set(target)
        if i < len(record.guesses):
            q = distribution(models.draft, before, temperature)
            assert place.probs["draft"] == pytest.approx({token: float(q[token]) for token in place.probs["draft"]}, abs=1e-4)
            assert record.guesses[i].token in place.probs["draft"]
        else:
            assert place.probs.keys() == {"target"}
        num_refused += i == record.num_from_draft and bool(place.guesses)
    assert num_refused
