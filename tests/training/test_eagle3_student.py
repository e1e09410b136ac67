"""EAGLE-3 heads in training: the training-time test against speculators' own, and the vocabulary that is drafted."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from hf_speculative.heads import load_head
from hf_speculative.training.eagle3_student import (
    Eagle3Student,
    TrainingTimeTest,
    layers_read,
    new_head,
)
from hf_speculative.training.head_student import most_frequent
from hf_speculative.training.sampling_params import SamplingParams
from tests.support import lessons, tiny

#: of a prompt whose greedy answer does not hinge on a near-tie
SEED = 3
FIXTURES = sorted((Path(__file__).parents[1] / "heads" / "fixtures").glob("eagle3_speculators_*"))


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_the_training_time_test_is_speculators(folder):
    """Logits of three steps, of heads with all kinds of norms and layers."""
    expected = load_file(folder / "expected.safetensors")
    embeddings = functional.embedding(expected["shifted_tokens"], expected["verifier_embed_tokens.weight"])
    found = TrainingTimeTest(load_head(folder), 3)(embeddings, expected["aux_hidden"])
    assert [logits.shape[1] for logits in found] == [7, 6, 5]
    for step, logits in enumerate(found):
        torch.testing.assert_close(logits[0], expected[f"ttt{step}_logits"][: 7 - step], atol=1e-5, rtol=0)


def test_there_are_fixtures():
    assert len(FIXTURES) == 6


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


def test_a_step_sees_no_token_that_it_guesses(deep):
    head = new_head(deep, torch.ones(tiny.VOCAB), tiny.VOCAB)
    test, width = TrainingTimeTest(head, 3), 32
    embeddings, states = torch.randn(1, 8, width), torch.randn(1, 8, 3 * width)
    before = test(embeddings, states)
    embeddings[:, 5], states[:, 5] = 0, 0  # token 6 of the text, and the state of token 5
    after = test(embeddings, states)
    for step, (one, other) in enumerate(zip(before, after, strict=True)):
        changed = (one != other).any(-1)[0].tolist()
        assert changed == [slot + step >= 5 for slot in range(8 - step)], step


def test_one_text_learned_by_heart_is_accepted_whole(deep, tmp_path):
    """By the real loop: what the training-time test has taught is what a head meets in use."""
    data = lessons.examples(deep, 1, seed=SEED)
    student = Eagle3Student(new_head(deep, torch.ones(tiny.VOCAB), tiny.VOCAB), deep)
    meter = lessons.meter(deep, use=SamplingParams(temperature=0), max_new_tokens=9)
    meter.prompts = [list(data[0].prompt_ids)]
    trainer = lessons.trainer(
        deep, None, tmp_path, data, student=student, meter=meter, max_steps=60, learning_rate=5e-3, loss="forward_kl"
    )
    before = {name: weight.clone() for name, weight in deep.named_parameters()}
    assert trainer.evaluate()["eval_acceptance_length"] < 2
    trainer.train()
    after = trainer.evaluate()
    assert [after[f"eval_greedy_position_{i}"] for i in (1, 2, 3)] == [1, 1, 1]
    assert all(torch.equal(before[name], weight) for name, weight in deep.named_parameters()), "the target is frozen"


def test_the_draft_vocabulary_is_the_most_frequent_tokens_sorted(deep, tmp_path):
    counts = torch.zeros(tiny.VOCAB, dtype=torch.long)
    counts[[50, 7, 33, 12]] = torch.tensor([9, 5, 5, 1])
    assert most_frequent(counts, 3).tolist() == [7, 33, 50]
    assert most_frequent(counts, 6).tolist() == [0, 1, 7, 12, 33, 50], "of those that never occur, the first ones"
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
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize(("num_layers", "expected"), [(2, (1,)), (4, (1, 2, 3)), (6, (2, 3, 3)), (32, (2, 16, 29))])
def test_layers_that_are_read(num_layers, expected):
    assert layers_read(num_layers) == expected
