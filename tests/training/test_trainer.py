"""The trainer of drafts on a tiny target."""

import copy

import pytest
import torch
from transformers import TrainerCallback

from hf_speculative.distillation.kinds import DraftStudent
from hf_speculative.distillation.sampling_params import SamplingParams
from tests.support import lessons, tiny
from tests.support.cases import slow_but


@pytest.fixture
def unlike(target):
    return tiny.noisy_copy(target, noise=0.8)


@pytest.mark.parametrize(
    ("kind", "steps", "learning_rate", "loss"),
    [
        pytest.param("draft model", 160, 5e-3, "lk_hybrid", marks=pytest.mark.slow),
        ("eagle3", 60, 5e-3, "forward_kl"),
        ("dflash", 80, 1e-2, "cross_entropy"),
        pytest.param("jetspec", 80, 1e-2, "cross_entropy", marks=pytest.mark.slow),
    ],
)
def test_one_text_learned_by_heart_is_accepted_whole(deep, kind, steps, learning_rate, loss, tmp_path):
    """By the real loop: what training has taught is what a draft meets in use. What belongs to the target stays."""
    data = lessons.examples(deep, 1, seed=3)
    student = lessons.new_student(kind, deep, torch.bincount(torch.tensor(data[0].new_ids), minlength=tiny.VOCAB))
    meter = lessons.meter(deep, use=SamplingParams(temperature=0), max_new_tokens=9)
    meter.prompts = [list(data[0].prompt_ids)]
    given = {"student": student, "meter": meter, "max_steps": steps, "learning_rate": learning_rate, "loss": loss}
    trainer = lessons.trainer(deep, None, tmp_path, data, **given)
    before = lessons.weights(deep).clone()
    assert trainer.evaluate()["eval_acceptance_length"] < 3
    trainer.train()
    after = trainer.evaluate()
    assert [after[f"eval_greedy_position_{i}"] for i in (1, 2, 3)] == [1, 1, 1]
    assert torch.equal(before, lessons.weights(deep)) and all(weight.grad is None for weight in deep.parameters())
    assert lessons.logged(trainer)[-1] < 0.2 * lessons.logged(trainer)[0]


def test_the_loss_is_that_of_the_answers_alone(target, unlike, tmp_path):
    """Summed over their tokens by hand; neither prompts nor padding count."""
    data = lessons.examples(target, 4)
    given = {"use": SamplingParams(temperature=0.7), "loss": "forward_kl", "max_steps": 1}
    trainer = lessons.trainer(target, unlike, tmp_path, data, **given)
    expected, count = 0.0, 0
    with torch.no_grad():
        for example in data:
            ids = torch.tensor([example.prompt_ids + example.new_ids])
            p, q = ((model(ids).logits[0] / 0.7).log_softmax(-1) for model in (target, unlike))
            start = len(example.prompt_ids) - 1
            expected += (p.exp() * (p - q)).sum(-1)[start:-1].sum()
            count += len(example.new_ids)
    trainer.train()
    assert lessons.logged(trainer) == pytest.approx([float(expected) / count], rel=1e-4)


def test_a_step_is_the_same_however_it_is_split(target, unlike, tmp_path):
    data = [example.cut(7 + i) for i, example in enumerate(lessons.examples(target))]
    found = []
    for size, num_passes in ((8, 1), (2, 4)):
        given = {"per_device_train_batch_size": size, "gradient_accumulation_steps": num_passes}
        trainer = lessons.trainer(target, copy.deepcopy(unlike), tmp_path, data, optim="sgd", **given)
        trainer.train()
        found.append((lessons.logged(trainer), lessons.weights(trainer.model)))
    (whole, weights), (parts, other) = found
    assert parts == pytest.approx(whole, rel=1e-3)
    torch.testing.assert_close(other, weights, atol=1e-6, rtol=1e-4)


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == self.step


@pytest.mark.parametrize("kind", slow_but(["draft model", "dflash"], "dflash"))
def test_resuming_equals_an_uninterrupted_run(kind, deep, tmp_path):
    """Bit by bit, evaluations in between included; the same anchors are drawn."""

    def new(folder, *callbacks):
        saving = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
        student = lessons.new_student(kind, deep)
        student.num_anchors = 2  # of a block: fewer than there could be
        trainer = lessons.trainer(deep, None, folder, student=student, meter=lessons.meter(deep), max_steps=6, **saving)
        for callback in callbacks:
            trainer.add_callback(callback)
        return trainer

    whole, part, resumed = new(tmp_path / "whole"), new(tmp_path / "part", StopAt(3)), new(tmp_path / "part")
    for trainer in (whole, part):
        torch.manual_seed(0)
        trainer.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "part" / "checkpoint-2"))
    assert part.state.global_step == 3 and resumed.state.global_step == 6
    assert lessons.logged(resumed) == lessons.logged(whole)
    assert torch.equal(lessons.weights(resumed.model), lessons.weights(whole.model))
    name = "eval_acceptance_length"
    assert lessons.logged(resumed, name) == lessons.logged(whole, name) and len(lessons.logged(whole, name)) == 3


def test_a_loss_that_is_no_number_stops_and_keeps_its_batch(target, unlike, tmp_path):
    trainer = lessons.trainer(target, unlike, tmp_path)
    trainer.add_callback(Poison(2))
    with pytest.raises(ValueError, match="the loss is nan in step 3; its batch is in "):
        trainer.train()
    kept = torch.load(tmp_path / "not-finite-step-2.pt")
    assert kept["input_ids"].shape == kept["labels"].shape and len(kept["input_ids"]) == 4


class Poison(StopAt):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            next(model.parameters()).data.fill_(float("nan"))


@pytest.mark.parametrize("widths", [(61, 64), (64, 61)], ids=str)
def test_paddings_of_vocabularies_are_left_out(widths, tmp_path):
    target, draft = (tiny.llama(seed, vocab_size=width) for seed, width in enumerate(widths))
    trainer = lessons.trainer(target, draft, tmp_path, max_steps=2)
    trainer.train()
    assert all(loss > 0 for loss in lessons.logged(trainer))


def test_drafts_of_another_vocabulary_are_refused(target):
    with pytest.raises(ValueError, match="more than padding explains"):
        DraftStudent(tiny.llama(vocab_size=2000), target)
