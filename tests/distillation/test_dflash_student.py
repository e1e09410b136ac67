"""DFlash blocks in training: all of them in one pass are what each is in use."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_speculative.distillation.dflash_student import BlocksAtAnchors, DFlashStudent, new_block
from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.distillation.teacher import Teacher
from hf_speculative.heads import load_head
from tests.support import blocks, heads, lessons, tiny
from tests.support.execution import have_equal_weights

#: kinds of heads that have nothing to correct their logits by
TRAINED = [kind for kind, (_, parts, _) in blocks.KINDS.items() if not {"selector", "markov"} & set(parts)]


@pytest.fixture(scope="module")
def pairs():
    return blocks.pairs(steps=0)


@pytest.fixture
def student(pairs, tmp_path):
    """`student(kind)` of a head as published, on random weights, and its plain computation."""

    def build(kind, **given):
        target, draft = pairs[blocks.from_anchor(kind)]
        blocks.write(kind, tmp_path / "head", target, draft)
        return DFlashStudent(load_head(tmp_path / "head"), target, **given), blocks.Plain(tmp_path / "head", target)

    return build


def new_student(target, kind="dflash", vocab_size=tiny.VOCAB, num_draft_tokens=3, **given):
    torch.manual_seed(0)
    return DFlashStudent(new_block(target, torch.ones(tiny.VOCAB), vocab_size, kind, num_draft_tokens), target, **given)


@torch.no_grad()
@pytest.mark.parametrize("name", ["dflash_zlab", "dflash_jetspec_causal"])
def test_the_original_implementations_outputs(name):
    expected = load_file(heads.FIXTURES / name / "expected.safetensors")
    embed = nn.Embedding.from_pretrained(expected["target_embed_tokens.weight"])
    ids = torch.cat([expected[f"round{i}_block_ids"] for i in range(2)], 1)
    anchors = torch.tensor([[6, 9]])
    found = BlocksAtAnchors(load_head(heads.FIXTURES / name))(embed(ids), expected["context_hidden"], anchors, anchors)
    for i in range(2):
        torch.testing.assert_close(found["hidden"][:, i], expected[f"round{i}_hidden"][:, 1:], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", TRAINED)
def test_logits_are_those_of_the_drafter(kind, student, tmp_path):
    """Of each anchor, in texts of unequal length: those of a plain computation, which the drafter is compared with, too."""
    student, plain = student(kind)
    target, data = student.target, lessons.examples(student.target, 3, length=14)
    cut = [example.cut(19 - 3 * row) for row, example in enumerate(data)]
    batch = lessons.trainer(target, None, tmp_path, student=student).data_collator(cut)
    lesson = Teacher(target, student.hidden_layers)(**batch)
    inputs = student.inputs(lesson)
    (guess,) = student.predictions(student.module(**inputs), lesson)
    logits = guess.logits.unflatten(1, (inputs["anchors"].shape[1], -1))
    num_compared = 0
    for row, (anchors, weights) in enumerate(zip(inputs["anchors"].tolist(), inputs["weights"], strict=True)):
        for block, anchor in enumerate(anchors):
            if weights[block]:
                expected = plain.logits(lesson.states[row, :anchor], lesson.ids[row, anchor].item(), [0] * 9)
                if student.vocabulary is not None:
                    expected = expected[:, student.vocabulary]
                torch.testing.assert_close(logits[row, block], expected, rtol=1e-5, atol=1e-5)
                num_compared += 1
    assert num_compared == lesson.counted.sum() > 20


def test_a_loss_over_all_anchors_by_hand(deep, tmp_path):
    """The mean over tokens of answers of the mean over the places of a block, the first counting most."""
    student = new_student(deep)
    use = SamplingParams(temperature=0.7)
    trainer = lessons.trainer(deep, None, tmp_path, student=student, loss="forward_kl", use=use)
    inputs = trainer.data_collator([one.cut(10 + row) for row, one in enumerate(lessons.examples(deep, 3))])
    lesson = trainer.teacher(**inputs)
    given = student.inputs(lesson)
    (guess,) = student.predictions(student.module(**given), lesson)
    logits, total = guess.logits.unflatten(1, (-1, 3)), 0.0
    weights = torch.exp(-torch.arange(3) / 2)
    for row, anchors in enumerate(given["anchors"].tolist()):
        for block, anchor in enumerate(anchors):
            for place in range(3):
                here = anchor + place
                if given["weights"][row, block] and here < lesson.ids.shape[1] and lesson.counted[row, here]:
                    p, q = ((x / 0.7).log_softmax(-1) for x in (lesson.logits[row, here], logits[row, block, place]))
                    total += weights[place] / weights.sum() * (p.exp() * (p - q)).sum()
    torch.testing.assert_close(trainer.compute_loss(student.module, inputs), total / lesson.counted.sum())


def test_fewer_anchors_weigh_more(deep):
    """What is drawn stands for all that could have been; filler, in rows that have fewer, for nothing."""
    counted = torch.zeros(3, 20, dtype=torch.bool)
    counted[0, 2:19], counted[1, 3:5] = True, True
    torch.manual_seed(0)
    student = new_student(deep, num_anchors=4)
    drawn = [student._drawn(counted) for _ in range(200)]
    for anchors, weights in drawn:
        assert anchors.shape == (3, 4) and len(anchors[0].unique()) == 4
        assert weights.sum(1).tolist() == [17, 2, 0] and (weights[0] == 17 / 4).all()
        assert set(anchors[1][weights[1] > 0].tolist()) == {3, 4}
    found = torch.cat([anchors[0] for anchors, _ in drawn]).bincount(minlength=20)
    assert (found[2:19] > 20).all() and found.sum() == found[2:19].sum() == 800, "47 each are expected"


@pytest.mark.parametrize("kind", TRAINED)
def test_every_head_that_is_trained_can_be_saved(kind, student, tmp_path):
    """In a layout that has a place for it."""
    one, _ = student(kind)
    one.save(tmp_path / "saved", None)
    again = load_head(tmp_path / "saved")
    assert have_equal_weights(again, one.head.state_dict()) and blocks.told(again) == blocks.told(one.head)


@pytest.mark.parametrize(("kind", "layout"), [("dflash", "speculators"), ("jetspec", "z-lab")])
def test_a_saved_head_is_read_again(deep, kind, layout, tmp_path):
    deep.config.name_or_path = "org/target"
    student = new_student(deep, kind, vocab_size=20)
    student.save(tmp_path, None)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert ("dflash_config" in fields) == (layout == "z-lab") and not fields.get("sliding_window")
    if layout == "speculators":
        assert fields["speculators_config"]["verifier"]["name_or_path"] == "org/target"
        assert fields["draft_vocab_size"] == 20 and fields["aux_hidden_state_layer_ids"] == [2, 3, 4]
    again = DFlashStudent(load_head(tmp_path), deep)
    assert again.kind == student.kind and again.block.hidden_layers == student.block.hidden_layers
    assert again.block.causal_layer_types == student.block.causal_layer_types or layout == "speculators"
    assert have_equal_weights(again.head, student.head.state_dict())
    guesses = []
    for one in (student, again):
        torch.manual_seed(1)
        batch = lessons.trainer(deep, None, tmp_path, student=one).data_collator(lessons.examples(deep, 2))
        lesson = Teacher(deep, one.hidden_layers)(**batch)
        guesses.append(one.predictions(one.module(**one.inputs(lesson)), lesson)[0].logits)
    torch.testing.assert_close(*guesses)
