"""Several texts in a row: the same loss and the same gradients as each in a row of its own."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import hf_speculative as hs
from hf_speculative.training.dflash_student import DFlashStudent, new_block
from hf_speculative.training.examples import Collator, Example
from hf_speculative.training.on_policy import OnPolicy
from hf_speculative.training.packing import keeps_texts_apart, positions_of, rows_of
from hf_speculative.training.progress import Watch
from hf_speculative.training.run import Run
from hf_speculative.training.sampling_params import SamplingParams
from hf_speculative.training.settings import Settings
from tests.support import lessons, tiny


def test_texts_share_rows_as_wide_as_the_longest():
    assert rows_of([3, 10, 4, 6, 7]) == [[1], [4, 0], [3, 2]]
    assert rows_of([5]) == [[0]] and rows_of([5, 5]) == [[0], [1]]


def test_a_packed_batch_and_back():
    data = [Example((1, 2), (3,)), Example((4,), (5, 6, 7, 8)), Example((9,), (1,))]
    batch = Collator(pad=0, packs=True)(data)
    assert batch["input_ids"].tolist() == [[4, 5, 6, 7, 8], [1, 2, 3, 9, 1]]
    assert batch["texts"].tolist() == [[1] * 5, [1, 1, 1, 2, 2]]
    assert batch["labels"].tolist() == [[-100, 5, 6, 7, 8], [-100, -100, 3, -100, 1]]
    assert positions_of(batch["texts"]).tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert Collator.apart(**batch) == [data[1], data[0], data[2]]


@pytest.mark.parametrize("kind", ["draft model", "eagle3", "dflash", "jetspec"])
def test_the_loss_is_that_of_rows_of_their_own(deep, kind, tmp_path):
    student = lessons.new_student(kind, deep)
    # Prompts so short that a block would reach the next text's answer.
    data = [Example(one.prompt_ids[:1], one.prompt_ids[1:] + one.new_ids) for one in lessons.of_many_lengths(deep)]
    trainer = lessons.trainer(deep, None, tmp_path, data, student=student, use=SamplingParams(temperature=0.7))
    found = []
    for packs in (False, True):
        batch = Collator(packs=packs)(data)
        loss = trainer.compute_loss(student.module, batch)
        trained = [weight for weight in student.module.parameters() if weight.requires_grad]
        found.append((len(batch["texts"]), loss, torch.autograd.grad(loss, trained)))
    (rows, loss, gradients), (packed_rows, packed_loss, packed_gradients) = found
    assert rows == 9 and packed_rows <= 7
    torch.testing.assert_close(packed_loss, loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed_gradients, gradients, atol=1e-5, rtol=0)


def test_each_text_gets_its_anchors(deep):
    """However many others are in its row."""
    student = DFlashStudent(new_block(deep, torch.ones(tiny.VOCAB), 50, "dflash", 3), deep, num_anchors=2)
    texts = torch.tensor([[1] * 6 + [2] * 3 + [3] * 3, [1] * 10 + [0] * 2])
    counted = torch.tensor([[0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 0], [1] * 9 + [0] * 3]).bool()
    for _ in range(5):
        anchors, weights = student._drawn(counted, texts)
        drawn = weights > 0
        assert anchors.shape == (2, 5) and counted.gather(1, anchors)[drawn].all()
        assert texts.gather(1, anchors)[0].tolist() == [1, 1, 2, 3, 3] and drawn.sum(1).tolist() == [5, 2]
        assert weights[0].tolist() == [2, 2, 1, 1, 1] and weights.sum(1).tolist() == [7, 9]


def test_answers_of_the_draft_itself(target):
    """A packed batch has the same texts anew as one that is not."""
    draft, data = tiny.noisy_copy(target, noise=0.8), lessons.of_many_lengths(target)
    found = []
    for packs in (False, True):
        collator = Collator(packs=packs)
        batch = OnPolicy(1.0, SamplingParams(temperature=0), collator)(draft, collator(data))
        found.append(set(Collator.apart(**batch)))
    assert found[0] == found[1] != set(data)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma3_text", "gpt_neox"])
def test_models_that_keep_texts_apart(model_type):
    model = tiny.build(model_type).train()
    assert keeps_texts_apart(model) and model.training


def test_models_that_mix_them():
    """A recurrent one, and one whose masks do not follow the positions."""
    config = AutoConfig.for_model("falcon_mamba", hidden_size=16, num_hidden_layers=1, vocab_size=20, state_size=4)
    assert not keeps_texts_apart(AutoModelForCausalLM.from_config(config))
    assert not keeps_texts_apart(tiny.build("opt"))


def prepared(target, folder, pack, said):
    settings = Settings("layers:1", steps=1, num_evaluations=1, batch_size=9, held_out=1, max_new_tokens=4, pack=pack)
    run = Run(target, folder, settings, hs.embedded_pair()[2], Watch(say=said.append))
    run.begin(resume=False)
    run.examples = lessons.of_many_lengths(target)
    run.read([{"prompt": list(example.prompt_ids)} for example in run.examples], {})
    run.prepare({})
    return run


def test_a_run_packs_and_learns_the_same(tmp_path):
    said, target = [], tiny.llama()
    packed, alone = (prepared(target, tmp_path / str(pack), pack, said) for pack in (True, False))
    assert packed.collator.packs and not alone.collator.packs and not said
    ((_, loss),), ((_, expected),) = packed.train(resume=False).losses, alone.train(resume=False).losses
    assert loss == pytest.approx(expected, abs=1e-5)


def test_a_run_says_that_it_cannot_pack(tmp_path):
    said = []
    run = prepared(tiny.build("opt"), tmp_path, True, said)
    assert not run.collator.packs and "Each text gets a row of its own" in said[0]
