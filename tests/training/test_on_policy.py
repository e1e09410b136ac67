"""Texts of the draft itself in the place of the target's."""

import copy

import torch

from hf_speculative.training.examples import Collator, Example
from hf_speculative.training.on_policy import OnPolicy, ended
from hf_speculative.training.sampling_params import SamplingParams
from tests.support import lessons, tiny

GREEDY = SamplingParams(temperature=0)


def test_answers_are_the_drafts_own(target):
    """Row by row what it would write after the prompt, no longer than what was there; prompts and modes stay."""
    draft = tiny.noisy_copy(target, noise=0.8).train()
    data = [example.cut(9 + 2 * row) for row, example in enumerate(lessons.examples(target, 3))]
    data.append(Example((4, 5), (6, 7, 8)))
    batch = Collator()(data)
    found = OnPolicy(1.0, GREEDY, Collator())(draft, batch)
    assert draft.training and found["input_ids"].shape == batch["input_ids"].shape
    for row, example in enumerate(data):
        start, end = len(example.prompt_ids), example.num_tokens
        expected = draft.eval().generate(
            torch.tensor([example.prompt_ids]), max_new_tokens=len(example.new_ids), do_sample=False
        )
        assert found["input_ids"][row, :end].tolist() == expected[0].tolist()
        assert found["labels"][row].tolist() == [-100] * start + expected[0, start:].tolist() + [-100] * (
            found["labels"].shape[1] - end
        )
        assert found["texts"][row].sum() == end
    assert not torch.equal(found["input_ids"], batch["input_ids"])


def test_a_share_of_the_passes(target):
    draft, batch = tiny.noisy_copy(target, noise=0.8), Collator()(lessons.examples(target, 2, length=2))
    torch.manual_seed(0)
    on_policy = OnPolicy(0.3, GREEDY, Collator())
    replaced = sum(on_policy(draft, batch) is not batch for _ in range(100))
    assert 15 < replaced < 45
    assert OnPolicy(0.0, GREEDY, Collator())(draft, batch) is batch


def test_texts_end_where_they_end():
    assert ended([5, 6, 1, 0, 0], {1}) == (5, 6, 1) and ended([5, 6], {1}) == (5, 6) and ended([1], {None}) == (1,)


def test_resuming_equals_an_uninterrupted_run(target, tmp_path):
    """The same texts are drawn."""
    draft = tiny.noisy_copy(target, noise=0.8)

    def new():
        given = {"save_strategy": "steps", "save_steps": 2, "on_policy": OnPolicy(0.5, SamplingParams(), Collator())}
        return lessons.trainer(target, copy.deepcopy(draft), tmp_path, **given)

    whole, resumed = new(), new()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert lessons.logged(resumed) == lessons.logged(whole)
    assert torch.equal(lessons.weights(resumed.model), lessons.weights(whole.model))
