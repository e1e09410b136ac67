import asyncio
import copy

import pytest

from hf_speculative.playground.runs import Models, Settings, run
from tests.support import tiny, tongues


@pytest.fixture(scope="session")
def models():
    target = tiny.llama(vocab_size=300)
    return Models(target, copy.deepcopy(tongues.byte_level(300)), tiny.noisy_copy(target))


@pytest.fixture
def decoded(models):
    """Runs a prompt to its end."""

    def decode(prompt, models=models, as_chat=False, **settings):
        *_, shown = run(models, Settings(**settings), prompt, as_chat)
        return shown

    return decode


@pytest.fixture(autouse=True)
def loops(monkeypatch):
    """gradio leaves event loops open that it has made for nothing."""
    made, new_event_loop = [], asyncio.new_event_loop

    def new():
        made.append(new_event_loop())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", new)
    yield
    if made:
        asyncio.set_event_loop(None)
    for loop in made:
        loop.close()
