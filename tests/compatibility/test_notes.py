"""What files alone tell about a pair: other chat formats, other targets."""

import copy

import pytest

from hf_speculative.compatibility.notes import made_for, notes_on
from tests.support import tiny, tongues

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
INST = "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
BROKEN = "{{ raise_exception('no such role') }}"


def tokenizer(template):
    found = tongues.characters("abc")
    found.chat_template = template
    return found


@pytest.mark.parametrize(
    ("own", "other", "note"),
    [
        (CHATML, CHATML, None),
        (None, None, None),
        (CHATML, BROKEN, None),
        (CHATML, None, "The draft may be a base model"),
        (None, CHATML, "The target may be a base model"),
        (CHATML, INST, "the target's writes '<|im_start|>user\\nHello!<' where the draft's writes '[INST] Hello!"),
    ],
)
def test_chat_templates(own, other, note):
    model = tiny.llama()
    found = notes_on(model, model, tokenizer(own), tokenizer(other))
    assert len(found) == (note is not None) and (note is None or note in found[0])


def test_the_target_that_a_head_was_made_for():
    target, draft = tiny.llama(), tiny.llama()
    draft.config = copy.deepcopy(draft.config)
    target.config.name_or_path = "Qwen/Qwen3-8B"
    assert made_for(draft) is None and notes_on(target, draft, None, None) == ()
    draft.config.speculators_config = {"verifier": {"name_or_path": "Qwen/Qwen3-4B"}}
    (note,) = notes_on(target, draft, None, None)
    assert "names Qwen/Qwen3-4B as the target it was made for, and this one is Qwen/Qwen3-8B" in note
    draft.config.speculators_config = {"verifier": {"name_or_path": "/models/qwen3-8b"}}
    assert notes_on(target, draft, None, None) == (), "a copy of it in a folder"


def test_a_target_alone_has_no_notes():
    assert notes_on(tiny.llama(), None, tokenizer(CHATML), None) == ()
