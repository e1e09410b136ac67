"""Requests with images in the engine, among others of text: equal to `generate` on them alone."""

import pytest

from tests.architectures.check import build
from tests.architectures.inputs import prompts
from tests.support import tiny
from tests.support.served import PATIENCE, alone, running, submit

#: positions by column, and positions moved by images; windows
TYPES = ("llava", "qwen2_5_vl", "gemma3")
SETTINGS = (
    {"max_new_tokens": 14},
    {"max_new_tokens": 10, "do_sample": True, "temperature": 0.8},
    {"max_new_tokens": 6, "repetition_penalty": 1.3},
)


@pytest.fixture(scope="module", params=TYPES)
def target(request):
    return build("image-text", request.param)


def with_image(model, seed: int) -> tuple[list[int], dict]:
    inputs = prompts("image-text", model, 1, seed)
    ids, media = inputs["input_ids"][0].tolist(), dict(inputs)
    del media["input_ids"], media["attention_mask"]
    return ids, media


@pytest.mark.parametrize("draft", ["draft", "auto", None])
def test_images_among_texts(target, draft):
    """The first one alone in the batch, others beside rows that run; two have the same ids and other images."""
    drafts = {None: {}, "auto": {"draft_model": "auto"}}.get(draft)
    if drafts is None:
        drafts = {"draft_model": tiny.noisy_copy(target, 0.1), "num_draft_tokens": 3}
    asked = [(*with_image(target, seed), seed) for seed in (0, 1)]
    ids, other = asked[0][0], with_image(target, 7)[1]
    asked += [(ids, other, 2), (ids[-5:], {}, 3), ([5, 9, 11], {}, 4), (*with_image(target, 3), 5)]
    expected = [alone(target, ids, seed, media, **SETTINGS[seed % 3]) for ids, media, seed in asked]
    others = (alone(target, ids, 0, with_image(target, seed)[1], **SETTINGS[0]) for seed in range(1, 8))
    assert any(other != expected[0] for other in others), "images matter"
    with running(target, max_lanes=3, **drafts) as engine:
        assert engine.takes_media
        answers = []
        for ids, media, seed in asked:
            answers.append(submit(engine, ids, seed, inputs=media, **SETTINGS[seed % 3]))
            if seed == 1:
                answers[0].has_begun.wait(PATIENCE)
        assert [answer.wait() for answer in answers] == expected
        # The next turn of a conversation goes on from what is parked, of texts alone.
        again = submit(engine, asked[0][0], 0, inputs=asked[0][1], **SETTINGS[0])
        assert again.wait() == expected[0] and again.request.num_cached == 0
        assert submit(engine, [5, 9, 11], 4, **SETTINGS[1]).wait() == expected[4], "and a text after an image"


def test_passes_of_one_shape_take_no_images(target):
    with running(target, draft_model="auto", reproducible="bitwise") as engine:
        assert not engine.takes_media


def test_an_image_that_the_model_refuses_ends_its_request_alone(target):
    ids, media = with_image(target, 0)
    broken = {name: value[..., :1] if value.is_floating_point() else value for name, value in media.items()}
    with running(target, draft_model="auto") as engine:
        with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
            submit(engine, ids, 0, inputs=broken, max_new_tokens=4).wait()
        assert submit(engine, [5, 9, 11], 0, max_new_tokens=6).wait() == alone(target, [5, 9, 11], 0, max_new_tokens=6)
