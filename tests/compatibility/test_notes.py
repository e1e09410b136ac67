"""What files alone tell about a pair: another target."""

import copy

from hf_speculative.compatibility.fit import made_for, notes_on
from tests.support import tiny


def test_the_target_that_a_head_was_made_for():
    target, draft = tiny.llama(), tiny.llama()
    draft.config = copy.deepcopy(draft.config)
    target.config.name_or_path = "Qwen/Qwen3-8B"
    assert made_for(draft) is None and notes_on(target, draft) == ()
    draft.config.speculators_config = {"verifier": {"name_or_path": "Qwen/Qwen3-4B"}}
    (note,) = notes_on(target, draft)
    assert "names Qwen/Qwen3-4B as the target it was made for, and this one is Qwen/Qwen3-8B" in note
    draft.config.speculators_config = {"verifier": {"name_or_path": "/models/qwen3-8b"}}
    assert notes_on(target, draft) == (), "a copy of it in a folder"
