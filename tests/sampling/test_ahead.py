"""Processors are asked ahead of the text only where plain decoding may come to; what they raise beyond is not the call's."""

import pytest
import torch
from transformers import EtaLogitsWarper, LogitsProcessor, TopHLogitsWarper
from transformers.generation.logits_process import WhisperNoSpeechDetection

import hf_speculative as hs
from tests.support import tiny


class PerStep(LogitsProcessor):
    """A table with an entry for each new token."""

    def __init__(self, width, num_steps):
        self.width, self.table = width, torch.arange(num_steps) % 3

    def __call__(self, input_ids, scores):
        return scores + self.table[input_ids.shape[1] - self.width]


@pytest.mark.parametrize("draft", ["model", "suffix"])
def test_no_processor_is_asked_beyond_the_maximum_length(target, draft):
    inputs = tiny.prompts(4)
    given = inputs | {"max_new_tokens": 20, "min_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    width = inputs["input_ids"].shape[1]
    expected = target.generate(**given, logits_processor=[PerStep(width, 20)])
    source = tiny.noisy_copy(target) if draft == "model" else draft
    found = hs.generate(target, **given, logits_processor=[PerStep(width, 20)], draft_model=source, num_draft_tokens=5)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("stops_at", [6, None])
def test_what_a_processor_raises_behind_a_stop_is_not_told(target, stops_at):
    ids = tiny.prompts(1)["input_ids"]
    width = ids.shape[1]
    text = target.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, width:].tolist()

    def allowed(row, prefix):
        return [text[len(prefix) - width]] if len(prefix) - width < 6 else []

    given = {"max_new_tokens": 24, "do_sample": False, "prefix_allowed_tokens_fn": allowed, "pad_token_id": 0}
    if stops_at is not None:
        stop = lambda ids, scores: torch.full((len(ids),), ids.shape[1] == width + stops_at)  # noqa: E731
        given["stopping_criteria"] = [stop]
    drafting = {"draft_model": tiny.noisy_copy(target, 0.01), "num_draft_tokens": 5}
    if stops_at is None:
        for more in ({}, drafting):
            with pytest.raises(ValueError, match="empty list"):
                hs.generate(target, ids, **given, **more)
    else:
        assert torch.equal(hs.generate(target, ids, **given, **drafting), target.generate(ids, **given))


@pytest.mark.parametrize("kind", [EtaLogitsWarper, TopHLogitsWarper])
def test_a_draft_without_an_allowed_token_says_nothing(kind):
    """What is allowed lies past its vocabulary."""
    target, draft = tiny.llama(vocab_size=400), tiny.llama(vocab_size=390)
    given = {"do_sample": True, "max_new_tokens": 8, "suppress_tokens": [*range(390)], "pad_token_id": 0}
    given["logits_processor"] = [kind(0.1)]
    output = hs.generate(target, torch.tensor([[5, 6, 7]]), **given, draft_model=draft, num_draft_tokens=3)
    assert (output[0, 3:] >= 390).all()


def test_the_detector_of_silence_sees_every_row(target):
    inputs = tiny.prompts(3)

    def found(**more):
        detector = WhisperNoSpeechDetection(no_speech_token=5, begin_index=1)
        detector.set_begin_index(inputs["input_ids"].shape[1])
        given = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "logits_processor": [detector]}
        hs.generate(target, **inputs, **given, **more)
        return detector.no_speech_prob

    plain = found()
    assert len(set(plain)) == 3
    assert found(draft_model=tiny.noisy_copy(target), num_draft_tokens=3) == pytest.approx(plain, rel=1e-4)


class Count(LogitsProcessor):
    """Its calls, which it can take back."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores

    def rollback(self, num_calls):
        self.num_calls -= num_calls


class Picky(Count):
    """Knows one text, and raises beside it."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def __call__(self, input_ids, scores):
        if input_ids[0].tolist() != self.text[: input_ids.shape[1]]:
            raise ValueError("unknown prefix")
        return super().__call__(input_ids, scores)


@pytest.mark.parametrize("is_first", [True, False])
def test_calls_are_taken_back_where_another_processor_raises(target, is_first):
    ids = tiny.prompts(1)["input_ids"]
    settings = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    text = target.generate(ids, **settings)[0].tolist()
    processors = [Count(), Picky(text)] if is_first else [Picky(text), Count()]
    drafting = {"draft_model": tiny.noisy_copy(target), "num_draft_tokens": 4}
    assert hs.generate(target, ids, **settings, logits_processor=processors, **drafting)[0].tolist() == text
    assert [processor.num_calls for processor in processors] == [40, 40]
