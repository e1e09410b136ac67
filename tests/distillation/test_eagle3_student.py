"""EAGLE-3 heads in training: the training-time test against speculators' own, and the vocabulary that is drafted."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from hf_speculative.distillation.eagle3_student import Eagle3Student, TrainingTimeTest, layers_read, new_head
from hf_speculative.heads import load_head
from tests.support import heads, lessons, tiny
from tests.support.execution import have_equal_weights

FIXTURES = sorted(heads.FIXTURES.glob("eagle3_speculators_*"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_the_training_time_test_is_speculators(folder, attention):
    """Logits of three steps, of heads with all kinds of norms and layers."""
    expected = load_file(folder / "expected.safetensors")
    embeddings = functional.embedding(expected["shifted_tokens"], expected["verifier_embed_tokens.weight"])
    found = TrainingTimeTest(load_head(folder, attn_implementation=attention), 3)(embeddings, expected["aux_hidden"])
    assert [logits.shape[1] for logits in found] == [7, 6, 5]
    for step, logits in enumerate(found):
        torch.testing.assert_close(logits[0], expected[f"ttt{step}_logits"][: 7 - step], atol=1e-5, rtol=0)


def test_steps_guess_the_tokens_that_they_are_compared_with(deep, tmp_path):
    """Where the head's last states are the target's last ones shifted, its first step would guess what the target does."""
    student = Eagle3Student(new_head(deep, torch.ones(tiny.VOCAB), tiny.VOCAB), deep, num_steps=3, decay=0.5)
    trainer = lessons.trainer(deep, None, tmp_path, student=student)
    lesson = trainer.teacher(**trainer.data_collator(lessons.examples(deep, 3)))
    inputs = student.inputs(lesson)
    length = lesson.ids.shape[1]
    assert inputs["inputs_embeds"].shape[1] == inputs["target_states"].shape[1] == length - 1
    assert torch.equal(inputs["inputs_embeds"], deep.get_input_embeddings()(lesson.ids[:, 1:]))
    found = student.predictions(student.module(**inputs), lesson)
    for step, one in enumerate(found):
        assert one.logits.shape[1] == length - 1 - step and (one.weights[:, :5] == 0.5**step).all()
        assert one.positions.tolist() == [list(range(step + 1, length))] * len(lesson.ids)
    assert len(found) == 3


def test_the_draft_vocabulary_is_the_most_frequent_tokens_sorted(deep, tmp_path):
    counts = torch.zeros(tiny.VOCAB, dtype=torch.long)
    counts[[50, 7, 33, 12]] = torch.tensor([9, 5, 5, 1])
    more = new_head(deep, counts, 6)
    assert more.t2d.nonzero()[:, 0].tolist() == [0, 1, 7, 12, 33, 50], "of those that never occur, the first ones"
    head = new_head(deep, counts, 3)
    assert (torch.arange(3) + head.d2t).tolist() == [7, 33, 50] and head.t2d.nonzero()[:, 0].tolist() == [7, 33, 50]
    assert torch.equal(head.lm_head.weight, deep.lm_head.weight[[7, 33, 50]]), "begins as the target's"
    student = Eagle3Student(head, deep)
    assert student.vocabulary.tolist() == [7, 33, 50]
    lessons.trainer(deep, None, tmp_path, student=student, max_steps=2).train()


def test_a_saved_head_is_read_again(deep, tmp_path):
    """In speculators' layout, with the target's name and the layers that were read."""
    head = new_head(deep, torch.arange(tiny.VOCAB), 20)
    Eagle3Student(head, deep).save(tmp_path, None)
    again = load_head(tmp_path)
    assert again.config.layers_read(6) == head.config.layers_read(6) == layers_read(6)
    assert again.config.speculators_config["algorithm"] == "eagle3"
    assert have_equal_weights(again, head.state_dict())


def test_the_draft_vocabulary_is_the_heads_own(deep):
    """A checkpoint brings the ids of the answers that it was begun with."""
    counts = torch.arange(tiny.VOCAB)
    head, saved = new_head(deep, counts, 20), new_head(deep, counts.flip(0), 20)
    student = Eagle3Student(head, deep)
    head.load_state_dict(saved.state_dict())
    assert student.vocabulary.tolist() == saved.t2d.nonzero()[:, 0].tolist()
