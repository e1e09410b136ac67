"""Small models as drafts: copies of the target's first layers, and LoRAs."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative.training.draft_student import DraftStudent, truncated
from tests.support import lessons, tiny


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
