"""What heads and draft models in training take over from their target."""

import pytest
import torch
from safetensors.torch import load_file

import hf_speculative as hs
from hf_speculative.distillation.dflash_student import DFlashStudent, new_block
from hf_speculative.distillation.eagle3_student import Eagle3Student, new_head
from hf_speculative.distillation.head_student import layer_fields
from hf_speculative.distillation.kinds import DraftStudent, truncated
from hf_speculative.distillation.teacher import Teacher
from tests.support import lessons, tiny

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


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_first_layers_are_a_model_of_their_own(model_type):
    target = tiny.build(model_type)
    draft = truncated(target, 1)
    ids = torch.randint(1, tiny.VOCAB, (2, 6))
    states = target(ids, output_hidden_states=True).hidden_states
    found = draft(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[0], states[0])
    assert len(found) == 2 and draft.config.num_hidden_layers == 1 and target.config.num_hidden_layers == 2
    assert not {w.data_ptr() for w in draft.parameters()} & {w.data_ptr() for w in target.parameters()}
    plain = target.generate(ids, do_sample=False, max_new_tokens=6)
    assert torch.equal(hs.generate(target, ids, draft_model=draft, do_sample=False, max_new_tokens=6), plain)


@pytest.mark.parametrize("num_layers", [0, 2, 9])
def test_more_layers_than_there_are(target, num_layers):
    with pytest.raises(ValueError, match=f"'layers:{num_layers}'`: the target has 2 layers"):
        truncated(target, num_layers)


def test_a_lora_trains_little_and_is_merged(target, tmp_path):
    draft = tiny.noisy_copy(target, noise=0.5)
    before = lessons.weights(draft)
    student = DraftStudent(draft, target, lora_rank=2)
    trainable = sum(weight.numel() for weight in student.module.parameters() if weight.requires_grad)
    assert 0 < trainable < 0.25 * len(before)
    given = {"student": student, "meter": lessons.meter(target), "max_steps": 20, "learning_rate": 5e-3}
    trainer = lessons.trainer(target, None, tmp_path / "run", **given)
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    losses = lessons.logged(trainer)
    assert losses[-1] < 0.9 * losses[0]
    ids = torch.randint(1, tiny.VOCAB, (1, 6))
    student.save(tmp_path / "draft", Nothing())
    merged = hs.models.loading.load_model(tmp_path / "draft", dtype=torch.float32)
    torch.testing.assert_close(merged(ids).logits, student.draft()(ids).logits, atol=1e-4, rtol=1e-4)
    assert type(merged) is type(target) and not torch.allclose(lessons.weights(merged), before)


class Nothing:
    def save_pretrained(self, folder):
        pass


@pytest.mark.parametrize(("student", "new"), [(Eagle3Student, new_head), (DFlashStudent, new_block)])
def test_a_head_is_saved_in_the_dtype_of_its_target(student, new, tmp_path):
    """In which it was measured; it learns in float32."""
    target = tiny.llama().to(torch.bfloat16)
    learning = student(new(target, torch.ones(tiny.VOCAB), 20), target)
    learning.save(tmp_path, None)
    saved = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values() if tensor.is_floating_point()} == {torch.bfloat16}
    assert learning.head.dtype == torch.float32
