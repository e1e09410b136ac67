"""A store of what the target makes of each text: the loss is that of a target that computes it."""

from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch

from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.distillation.teacher import Teacher, collated
from hf_speculative.training.store import StoredTeacher
from tests.support import lessons, tiny


@pytest.mark.parametrize("kind", ["draft model", "eagle3", "dflash"])
def test_the_loss_is_that_of_the_target_itself(deep, kind, tmp_path):
    student, data = lessons.new_student(kind, deep), lessons.of_many_lengths(deep)
    trainer = lessons.trainer(deep, None, tmp_path, data, student=student, use=SamplingParams(temperature=0.7))
    batch = collated(data[2:8])
    expected = trainer.compute_loss(student.module, batch)
    trainer.teacher = StoredTeacher(deep, student.hidden_layers, tmp_path / "store")
    assert trainer.compute_loss(student.module, batch).item() == pytest.approx(expected.item(), abs=1e-5)
    with tiny.CountForwards(deep) as forwards:
        found = trainer.compute_loss(student.module, batch)
    assert not forwards.lengths
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_logits_are_kept_where_the_output_layer_alone_does_not_make_them(target, tmp_path):
    """Cohere scales them; of a Llama, the output layer's input is all that is needed."""
    for model, kept in ((target, "last"), (tiny.build("cohere"), "logits")):
        batch = collated(lessons.of_many_lengths(model))
        teacher, here = StoredTeacher(model, (), tmp_path), batch["attention_mask"] > 0
        assert teacher.names == ("states", kept)
        for _ in range(2):  # recorded, then read
            expected = Teacher(model)(**batch).logits[here]
            torch.testing.assert_close(teacher(**batch).logits[here], expected, atol=1e-5, rtol=0)


def test_what_is_there_is_used_and_what_is_missing_added(target, tmp_path):
    """By texts, whatever batches they come in; each target and choice of layers has a part of the store."""
    data = lessons.of_many_lengths(target)
    teacher = StoredTeacher(target, (1, 2), tmp_path)
    teacher(**collated(data[:4]))
    assert len(list(tmp_path.rglob("*.*"))) == 4
    with tiny.CountForwards(target) as forwards:
        for examples in (data[1:3], data[3:5], data[:5]):
            teacher(**collated(examples))
    assert len(forwards.lengths) == 1, "of what is new"
    output = Mock(side_effect=target.get_output_embeddings().forward)
    with patch.object(target.get_output_embeddings(), "forward", output):
        teacher.record(**collated(data[5:8]))
    assert [call.args[0].shape[1] for call in output.call_args_list] == [1], "no logits are made for nothing"
    for model, layers in ((tiny.noisy_copy(target), (1, 2)), (target, (0, 2))):
        StoredTeacher(model, layers, tmp_path)(**collated(data[:4]))
    assert len(list(tmp_path.rglob("*.*"))) == 8 + 4 + 4
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"`store=.*file'`: no folder can be made there"):
        StoredTeacher(target, (), tmp_path / "file")


def test_a_disk_without_room_keeps_what_was_recorded(target, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    teacher, data = StoredTeacher(target, (), tmp_path), lessons.of_many_lengths(target)
    teacher(**collated(data[:4]))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device: the file is left as it was"):
        teacher(**collated(data))
    assert len(list(tmp_path.rglob("*.*"))) == 4
