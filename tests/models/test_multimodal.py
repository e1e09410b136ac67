"""Prompts with images on the ragged path: the rows of a batch keep their own lengths, and drafts may be trees."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative.models import MultimodalModel, RaggedModel, choose_for, prepared_inputs, probe
from hf_speculative.models.model_state import forget
from hf_speculative.models.static import StaticModel
from hf_speculative.models.universal import UniversalModel
from hf_speculative.types import Batch, Prefix
from tests.architectures.check import build
from tests.architectures.inputs import prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.execution import run_as
from tests.support.fake_graphs import Recorded
from tests.support.plain import agrees

#: positions by column, positions in three dimensions, windows and masks over images, recurrent layers
TYPES = ("llava", "qwen2_5_vl", "gemma3", "qwen3_5")


@pytest.fixture(scope="module")
def models():
    return {name: build("image-text", name) for name in TYPES}


@pytest.fixture(params=TYPES)
def target(request, models):
    return models[request.param]


def prepared(model, num_rows=3):
    return prepared_inputs(model, prompts("image-text", model, num_rows))


GREEDY = {"max_new_tokens": 20, "do_sample": False}


def test_the_path(target):
    inputs = prepared(target)
    assert choose_for(target, inputs).has_media
    assert not choose_for(target, inputs, takes_media=False).has_media  # for drafts that read the target


@pytest.mark.parametrize("draft", ["noisy", "auto", "copy"])
def test_unequal_rows_with_images(target, draft):
    """The draft sees the images: a copy of the target is always right."""
    drafts = {"noisy": tiny.noisy_copy(target, 0.1), "auto": "auto", "copy": tiny.noisy_copy(target, 0.0)}
    call = prompts("image-text", target, 3) | GREEDY
    stats = agrees(target, call, draft_model=drafts[draft], num_draft_tokens=4)
    assert stats.num_accepted_draft_tokens > 0 and (draft != "copy" or stats.draft_acceptance_rate == 1)


@pytest.mark.parametrize("name", slow_but((*TYPES, "qwen3_omni_moe_thinker"), "qwen3_5"))
def test_captured_passes(name, monkeypatch):
    """A later call replays those of an earlier one, whose image has moved positions otherwise; they may be no integers."""
    target, capture = build("image-text", name), Recorded()
    draft, copy = tiny.noisy_copy(target, 0.1), tiny.noisy_copy(target, 0.0)
    run_as(monkeypatch, captures=True)
    monkeypatch.setattr("hf_speculative.models.replays.NUM_EAGER", 0)
    monkeypatch.setattr("hf_speculative.models.execution.CudaGraph", lambda device, *given: capture(*given))
    monkeypatch.setattr("hf_speculative.models.execution.uncapturable_reason", lambda model: None)
    for num_rows, source in ((3, draft), (2, "auto"), *[(2, copy)] * 3):
        before, call = capture.num_captures, prompts("image-text", target, num_rows) | GREEDY
        stats = agrees(target, call, draft_model=source, num_draft_tokens=4, optimize=True)
    assert stats.draft_acceptance_rate == 1, "it has seen the image"
    assert capture.num_captures == before and capture.num_replays > 40
    expected, before = target.generate(**call).tolist(), capture.num_replays
    hs.attach(target, draft)
    assert target.generate(**call, draft_model=None).tolist() == expected and capture.num_replays > before + 10


@torch.no_grad()
def test_positions_that_are_not_whole_numbers_run_eagerly():
    """As behind some videos."""
    model, batch = StaticModel(tiny.llama()), Batch(torch.tensor([[5, 9, 11, 12]]), [0], 64)
    model.logits(batch, ahead=0, num_last=1)
    assert model._is_static(batch, 1)
    model.offsets = [2.5]
    assert not model._is_static(batch, 1)


def test_several_sequences_of_a_prompt(target):
    sampled = {"do_sample": True, "max_new_tokens": 12, "num_return_sequences": 2}
    call = prompts("image-text", target, 2) | sampled
    agrees(target, call, draft_model=tiny.noisy_copy(target, 0.1), num_draft_tokens=3)


def test_a_row_that_ends_before_the_draft_is_asked(models):
    """The draft reads the prompt after its first round, when rows may have left."""
    target = models["qwen2_5_vl"]
    inputs = prompts("image-text", target, 3)
    plain = target.generate(**inputs, **GREEDY)
    ends = int(plain[1, inputs["input_ids"].shape[1]])  # the first new token of row 1
    call = inputs | GREEDY | {"eos_token_id": ends, "pad_token_id": 0}
    agrees(target, call, draft_model=tiny.noisy_copy(target, 0.1), num_draft_tokens=3)


def test_a_type_that_is_not_known_is_tried(models, monkeypatch):
    """On its own prompt: positions that are off by one are seen, and the universal path serves the call."""
    target = models["qwen2_5_vl"]
    monkeypatch.setattr(probe, "is_tested_universal", lambda model, by_type=False: False)
    inputs = prepared(target)
    forget(target)
    assert choose_for(target, inputs).has_media
    forget(target)
    after = UniversalModel.position_after_prompt
    monkeypatch.setattr(UniversalModel, "position_after_prompt", lambda self: after(self) + 1)
    assert choose_for(target, inputs).name == "universal"
    forget(target)


def test_positions_belong_to_their_rows(models):
    """A row of text takes no offset from an image: beside it, sharing with another row, or in its place."""
    model = models["qwen2_5_vl"]
    inputs = prepared(model, num_rows=2)
    running, batch = MultimodalModel(model, inputs), Batch(inputs.input_ids, inputs.prompt.padding, 64)
    running.logits(batch, ahead=0, num_last=1)
    offset, other = running.offsets
    assert offset and other
    text = RaggedModel(model)
    ids = torch.tensor([[5, 9, 11, 12]])
    text.logits(Batch(ids, [0], 64), ahead=0, num_last=1)
    running.take(text, [1])
    assert running.offsets == [offset, 0]

    newcomers = Batch(torch.tensor([[5, 9, 11, 20], [30, 31, 32, 33]]), [0, 0], 64)
    newcomers.prefixes = [Prefix(1, 3), Prefix(0, 0)]
    fresh = RaggedModel(model)
    fresh.share(running, newcomers)
    assert fresh.host_seen == [3, 0] and fresh.offsets == [0, 0]
    running.take(fresh, [0, 1])
    assert not any(running.offsets)
    running.select([1])
    assert running.offsets == [0]


def test_logits_that_reach_back_into_the_prompt(models):
    """Asked for at once: those after the prompt, and those after tokens behind it."""
    target, inputs = models["llava"], prepared(models["llava"], 1)
    width = inputs.input_ids.shape[1]
    more = torch.tensor([[5, 6]])

    def batch():
        rows = probe.Batch(inputs.input_ids, inputs.prompt.padding, width + 8)
        rows.put(more)
        return rows

    with torch.no_grad():
        expected = UniversalModel(target, inputs).logits(batch(), ahead=2, num_last=3)
        found = MultimodalModel(target, inputs).logits(batch(), ahead=2, num_last=3)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
