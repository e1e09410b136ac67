"""The page without a browser: what its controls do, and what it asks of others."""

import pytest

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
