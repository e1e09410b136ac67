"""What heads in training take over from their target."""

import pytest
import torch

from hf_speculative.training.dflash_student import DFlashStudent, new_block
from hf_speculative.training.eagle3_student import Eagle3Student, new_head
from hf_speculative.training.head_student import layer_fields
from hf_speculative.training.teacher import Teacher
from tests.support import tiny

IDS = torch.tensor([[3, 4, 5, 6, 7]])


@pytest.fixture(scope="module")
def gemma():
    """It scales its embeddings, and rotates otherwise in layers with a window."""
    return tiny.build("gemma3_text")


@pytest.mark.parametrize(("student", "new"), [(Eagle3Student, new_head), (DFlashStudent, new_block)])
def test_embeddings_are_the_weights_themselves(gemma, student, new):
    """As the drafters read them, whatever the target makes of them."""
    weights = gemma.get_input_embeddings().weight
    assert not torch.equal(gemma.get_input_embeddings()(IDS), weights[IDS])
    student = student(new(gemma, torch.ones(tiny.VOCAB), 20), gemma)
    lesson = Teacher(gemma, student.hidden_layers)(IDS, torch.ones_like(IDS), IDS)
    inputs = student.inputs(lesson)
    found = inputs.get("inputs_embeds", inputs.get("noise_embeds"))
    first = IDS.gather(1, inputs["anchors"])[0, 0] if "anchors" in inputs else IDS[0, 1]
    assert torch.equal(found[0, 0], weights[first])
    student.predictions(student.module(**inputs), lesson)


def test_rotation_is_that_of_full_attention_over_whole_keys(gemma):
    rope = layer_fields(gemma, "head")["rope_parameters"]
    assert rope == gemma.config.rope_parameters["full_attention"] and "rope_theta" in rope
    partial = tiny.llama()
    partial.config.rope_parameters = dict(partial.config.rope_parameters) | {"partial_rotary_factor": 0.5}
    assert "partial_rotary_factor" not in layer_fields(partial, "head")["rope_parameters"]
    new_head(partial, torch.ones(tiny.VOCAB), 20)


def test_targets_that_no_head_fits():
    with pytest.raises(ValueError, match=r"no DFlash block can be made for a .*, which has no intermediate_size"):
        new_block(tiny.build("gpt2"), torch.ones(tiny.VOCAB), 20)
