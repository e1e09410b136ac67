"""DFlash blocks in training: all of them in one pass are what each is in use."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hf_speculative.heads import load_head
from hf_speculative.training.dflash_student import BlocksAtAnchors, DFlashStudent, new_block, outputs_read
from hf_speculative.training.sampling_params import SamplingParams
from hf_speculative.training.teacher import Teacher, TeacherOutputs
from tests.support import blocks, lessons, tiny

FIXTURES = Path(__file__).parents[1] / "heads" / "fixtures"
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
    """Both rounds of each fixture as two blocks of one text."""
    expected = load_file(FIXTURES / name / "expected.safetensors")
    embed = nn.Embedding.from_pretrained(expected["target_embed_tokens.weight"])
    ids = torch.cat([expected[f"round{i}_block_ids"] for i in range(2)], 1)
    anchors = torch.tensor([[6, 9]])
    context = expected["context_hidden"]
    blocks = BlocksAtAnchors(load_head(FIXTURES / name))
    found = blocks(embed(ids), context, anchors, anchors)
    for i in range(2):
        torch.testing.assert_close(found["hidden"][:, i], expected[f"round{i}_hidden"][:, 1:], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", TRAINED)
def test_logits_are_those_of_the_drafter(kind, student, tmp_path):
    """Of each anchor, in texts of unequal length: those of a plain computation, which the drafter is compared with, too."""
    student, plain = student(kind)
    target, data = student.target, lessons.examples(student.target, 3, length=14)
    batch = lessons.trainer(target, None, tmp_path, student=student).data_collator(
        [example.cut(19 - 3 * row) for row, example in enumerate(data)]
    )
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


def test_gradients_are_those_of_each_block_alone(student, tmp_path):
    """In one pass, blocks share the text and nothing else."""
    student, _ = student("z-lab, causal windows")
    target = student.target
    lesson = Teacher(target, student.hidden_layers)(
        **lessons.trainer(target, None, tmp_path, student=student).data_collator(lessons.examples(target, 2))
    )
    inputs = student.inputs(lesson)
    factors = torch.randn(student.module(**inputs)["hidden"].shape)

    def gradients(total):
        weights = {name: weight for name, weight in student.head.named_parameters() if weight.requires_grad}
        return dict(zip(weights, torch.autograd.grad(total, weights.values()), strict=True))

    found = gradients((student.module(**inputs)["hidden"] * factors).sum())
    alone, size = 0, student.block.block_size
    for row, anchors in enumerate(inputs["anchors"].tolist()):
        for block, anchor in enumerate(anchors):
            positions = torch.arange(anchor + size)
            hidden = student.head(
                noise_embeds=inputs["noise_embeds"][row, None, block * size : (block + 1) * size],
                context_hidden_states=inputs["target_states"][row, None, :anchor],
                position_ids=positions[None],
                attention_mask={
                    kind: student.block.visible(kind, positions[None, anchor:], positions)
                    for kind in student.head.config.layer_types
                },
            ).last_hidden_state
            alone = alone + (hidden[:, 1:] * factors[row, block]).sum()
    for name, gradient in gradients(alone).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("kind", "vocab_size"), [("dflash", 50), ("jetspec", tiny.VOCAB)])
def test_one_text_learned_by_heart_is_accepted_whole(deep, kind, vocab_size, tmp_path):
    """By the real loop, to the end of the block; what belongs to the target stays."""
    data = lessons.examples(deep, 1, seed=3)
    counts = torch.bincount(torch.tensor(data[0].new_ids), minlength=tiny.VOCAB)
    torch.manual_seed(0)
    student = DFlashStudent(new_block(deep, counts, vocab_size, kind, 3), deep)
    meter = lessons.meter(deep, use=SamplingParams(temperature=0), max_new_tokens=9)
    meter.prompts = [list(data[0].prompt_ids)]
    trainer = lessons.trainer(
        deep, None, tmp_path, data, student=student, meter=meter, max_steps=80, learning_rate=1e-2, loss="cross_entropy"
    )
    before = {name: weight.clone() for name, weight in deep.named_parameters()}
    assert trainer.evaluate()["eval_acceptance_length"] < 2
    trainer.train()
    after = trainer.evaluate()
    assert [after[f"eval_greedy_position_{i}"] for i in (1, 2, 3)] == [1, 1, 1]
    assert all(torch.equal(before[name], weight) for name, weight in deep.named_parameters())
    assert all(weight.grad is None for weight in deep.parameters())


def test_a_loss_over_all_anchors_by_hand(deep, tmp_path):
    """The mean over tokens of answers of the mean over the places of a block, the first counting most."""
    student = new_student(deep)
    trainer = lessons.trainer(
        deep, None, tmp_path, student=student, loss="forward_kl", use=SamplingParams(temperature=0.7)
    )
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
    found = trainer.compute_loss(student.module, inputs)
    torch.testing.assert_close(found, total / lesson.counted.sum())


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


def test_resuming_equals_an_uninterrupted_run(deep, tmp_path):
    """The same anchors are drawn."""

    def new(folder):
        student = new_student(deep, num_anchors=2)
        return lessons.trainer(deep, None, folder, student=student, save_strategy="steps", save_steps=2)

    whole, resumed = new(tmp_path), new(tmp_path)
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert lessons.logged(resumed) == lessons.logged(whole)
    assert torch.equal(lessons.weights(resumed.model), lessons.weights(whole.model))


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
    for name, tensor in student.head.state_dict().items():
        assert torch.equal(again.head.state_dict()[name], tensor), name
    guesses = []
    for one in (student, again):
        torch.manual_seed(1)
        lesson = Teacher(deep, one.hidden_layers)(
            **lessons.trainer(deep, None, tmp_path, student=one).data_collator(lessons.examples(deep, 2))
        )
        guesses.append(one.predictions(one.module(**one.inputs(lesson)), lesson)[0].logits)
    torch.testing.assert_close(*guesses)


def test_mixed_dtypes(deep):
    """A target in bfloat16; the head learns in float32, and drafts in the target's."""
    half = copy.deepcopy(deep).to(torch.bfloat16)
    student = new_student(half)
    ids = torch.ones(1, 6, dtype=torch.long)
    lesson: TeacherOutputs = Teacher(half, student.hidden_layers)(ids, ids, ids)
    (guess,) = student.predictions(student.module(**student.inputs(lesson)), lesson)
    guess.logits.float().sum().backward()
    assert student.head.layers[0].mlp.up_proj.weight.grad.dtype == torch.float32
    assert student.draft().dtype == torch.bfloat16 and student.head.dtype == torch.float32


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(1, [0]), (2, [0]), (4, [1, 2]), (6, [1, 2, 3]), (12, [1, 3, 5, 7, 9]), (36, [1, 9, 17, 25, 33])],
)
def test_layers_that_are_read(depth, expected):
    """Of 36: those of z-lab/Qwen3-8B-DFlash."""
    assert outputs_read(depth) == expected
