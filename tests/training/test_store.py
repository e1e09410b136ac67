"""A store of what the target makes of each text: the loss is that of a target that computes it."""

import json
from collections import namedtuple

import pytest
import torch

import hf_speculative as hs
from hf_speculative.training import store as stores
from hf_speculative.training.examples import Collator
from hf_speculative.training.progress import Watch
from hf_speculative.training.run import Run
from hf_speculative.training.sampling_params import SamplingParams
from hf_speculative.training.settings import Settings
from hf_speculative.training.store import StoredTeacher
from hf_speculative.training.teacher import Teacher
from tests.support import lessons, tiny

SETTINGS = {"head": "layers:1", "steps": 2, "num_evaluations": 1, "batch_size": 4, "held_out": 2, "max_new_tokens": 6}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(stores, "TEXTS", 4)


def stored(target, folder, data, layers=(1, 2)):
    teacher = StoredTeacher(Teacher(target, layers), folder, data)
    teacher.record(teacher.begin(), Collator(), 3)
    return teacher


@pytest.mark.parametrize("kind", ["draft model", "eagle3", "dflash"])
def test_the_loss_is_that_of_the_target_itself(deep, kind, tmp_path):
    """And the target does not run."""
    student, data = lessons.new_student(kind, deep), lessons.of_many_lengths(deep)
    trainer = lessons.trainer(deep, None, tmp_path, data, student=student, use=SamplingParams(temperature=0.7))
    batch = Collator()(data[2:8])
    expected = trainer.compute_loss(student.module, batch)
    trainer.teacher = stored(deep, tmp_path / "store", data, student.hidden_layers)
    with tiny.CountForwards(deep) as forwards:
        found = trainer.compute_loss(student.module, batch)
    assert not forwards.lengths
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_logits_are_kept_where_the_output_layer_alone_does_not_make_them(target, tmp_path):
    """Cohere scales them; of a Llama, the output layer's input is all that is needed."""
    cohere = tiny.build("cohere")
    for model, kept in ((target, {"read": 32}), (cohere, {"logits": tiny.VOCAB})):
        data = lessons.of_many_lengths(model)
        teacher = stored(model, tmp_path / next(iter(kept)), data, ())
        assert teacher.widths == kept and teacher.bytes_of_token == 4 * sum(kept.values())
        size = sum(path.stat().st_size for path in teacher.folder.glob("*.safetensors"))
        assert teacher.num_bytes == 4 * sum(kept.values()) * sum(e.num_tokens for e in data) < size
        batch = Collator()(data)
        here = batch["attention_mask"] > 0
        torch.testing.assert_close(
            teacher(**batch).logits[here], teacher.teacher(**batch).logits[here], atol=1e-5, rtol=0
        )


def test_what_is_there_is_used_and_what_is_missing_added(target, tmp_path):
    data = lessons.of_many_lengths(target)
    teacher = stored(target, tmp_path, data)
    assert teacher.begin() == [] and len(list(tmp_path.iterdir())) == 4
    (tmp_path / "000001.safetensors").unlink()
    assert StoredTeacher(Teacher(target, (1, 2)), tmp_path, data).begin() == [1]


def test_a_store_of_something_else_is_refused(target, tmp_path):
    data = lessons.of_many_lengths(target)
    stored(target, tmp_path / "store", data)
    others = {
        "target": (tiny.noisy_copy(target), data, (1, 2)),
        "layers": (target, data, (0, 2)),
        "texts": (target, data[1:], (1, 2)),
    }
    for name, (model, examples, layers) in others.items():
        with pytest.raises(ValueError, match=f"recorded of something else: its {name} is .*Name another folder"):
            StoredTeacher(Teacher(model, layers), tmp_path / "store", examples).begin()
    (tmp_path / "a").write_text("b")
    with pytest.raises(ValueError, match="holds other files: name a new folder"):
        StoredTeacher(Teacher(target), tmp_path, data).begin()


def test_a_disk_without_room_is_refused(target, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda folder: usage(10, 9, 1))
    with pytest.raises(ValueError, match=r"needs 0\.0 GB more, and 0\.0 GB are free there: name a folder on a larger"):
        StoredTeacher(Teacher(target), tmp_path / "store", lessons.of_many_lengths(target)).begin()
    assert not any(tmp_path.rglob("*.json"))


def test_a_run_learns_the_same(tmp_path):
    target, found = tiny.llama(), []
    prompts = [{"prompt": list(example.prompt_ids)} for example in lessons.examples(target, 8)]
    tokenizer = hs.embedded_pair()[2]
    for name, store in (("without", None), ("with", tmp_path / "store")):
        run = Run(
            target,
            tmp_path / name,
            Settings(**SETTINGS, use=SamplingParams(temperature=0)),
            tokenizer,
            Watch(),
            None,
            store,
        )
        run.begin(resume=False)
        run.read(prompts, {})
        run.answer()
        run.prepare({})
        with tiny.CountForwards(target) as forwards:
            losses = [loss for _, loss in run.train(resume=False).losses]
        found.append((losses, len(forwards.lengths)))
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5)
    assert found[0][1] - found[1][1] == 2, "one pass less of each step"
    fields = json.loads((tmp_path / "store" / "store.json").read_text())
    assert fields["kept"] == {"read": 32}
