"""Lessons from what the target computed while it decoded: those of a teacher that reads the texts again."""

import copy
import itertools
import threading
from contextlib import closing

import pytest
import torch

import hf_speculative as hs
from hf_speculative.distillation import followed
from hf_speculative.distillation.followed import lesson_of
from hf_speculative.distillation.teacher import collated
from hf_speculative.serving.engine import Engine
from tests.support import heads, lessons, tiny

TREES = hs.SpeculativeConfig(tree_top_k=2, tree_depth=3)
CALLS = {
    "chains": {"num_draft_tokens": 3},
    "trees": {"num_draft_tokens": 6, "speculative_config": TREES, "do_sample": False},
    "a stop within a pass": {"num_draft_tokens": 3, "do_sample": False, "eos_token_id": list(range(1, 60, 8))},
    "copies of a prompt": {"num_draft_tokens": 3, "num_return_sequences": 2},
    "the universal path": {"num_draft_tokens": 3, "output_hidden_states": True, "return_dict_in_generate": True},
}


@pytest.fixture
def target():
    return tiny.llama()


def learner_of(target, kind, **settings):
    learner = hs.Learner(**{"share": 1e-6} | settings)  # nothing is learned unless a test says so
    draft = copy.deepcopy(target) if kind == "draft model" else lessons.new_student(kind, target).draft().eval()
    if kind == "draft model":  # whose second choice is often right
        torch.manual_seed(0)
        for weight in draft.parameters():
            weight.data += 0.5 * weight.std() * torch.randn_like(weight)
    hs.attach(target, draft, learn=learner)
    learner.is_held_out = lambda prompt: False
    return learner


def prompts(num, seed=0):
    """Of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randint(1, 60, (3 + number,), generator=generator) for number in range(num)]
    ids = torch.nn.utils.rnn.pad_sequence([one.flip(0) for one in found], batch_first=True, padding_value=-1).flip(1)
    return {"input_ids": ids.clamp(min=0), "attention_mask": (ids >= 0).long()}


def check(learner):
    """What was recorded is what a teacher gives."""
    device = learner.teacher.target.device
    found = lesson_of([text for _, text in learner.recorded], device)
    expected = learner.teacher(**collated([text.example for _, text in learner.recorded]))
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.counted, expected.counted)
    torch.testing.assert_close(found.logits[found.counted], expected.logits[found.counted], rtol=1e-4, atol=1e-4)
    is_read = found.attention_mask.bool()
    is_read[torch.arange(len(is_read)), is_read.sum(1) - 1] = False  # nothing follows a text's last token
    torch.testing.assert_close(found.states[is_read], expected.states[is_read], rtol=1e-4, atol=1e-4)


KINDS = ("draft model", "eagle3", "dflash")  # the last has no options of trees


@pytest.mark.parametrize(("kind", "call"), sorted({*itertools.product(KINDS, CALLS)} - {("dflash", "trees")}))
def test_lessons_are_those_of_a_teacher(target, kind, call):
    learner = learner_of(target, kind)
    copies = CALLS[call].get("num_return_sequences", 1)
    torch.manual_seed(0)
    with hs.record() as statistics:
        target.generate(**prompts(4 // copies), max_new_tokens=14, **{"do_sample": True} | CALLS[call])
    assert statistics.num_draft_tokens > 0
    assert len(learner.recorded) == learner.num_texts > 1
    check(learner)


def test_rows_that_come_and_go(target):
    learner = learner_of(target, "eagle3")
    texts = prompts(3)
    ids = [row[mask.bool()].tolist() for row, mask in zip(*texts.values(), strict=True)]
    completions = hs.generate_batches(target, ids, batch_size=2, max_new_tokens=12, do_sample=True)
    assert len(list(completions)) == 3
    assert len(learner.recorded) == 3
    check(learner)


def test_requests_of_a_server(target):
    learner = learner_of(target, "eagle3")
    texts = [row[mask.bool()].tolist() for row, mask in zip(*prompts(3).values(), strict=True)]
    with closing(Engine(target, max_lanes=2)) as engine:
        ended = [threading.Event() for _ in texts]
        for text, event in zip(texts, ended, strict=True):
            engine.submit(text, lambda _: None, lambda _, event=event: event.set(), max_new_tokens=12)
        assert all(event.wait(60) for event in ended)
    assert len(learner.recorded) == 3
    check(learner)


def test_the_target_reads_no_text_again(target, monkeypatch):
    learner = learner_of(target, "eagle3", share=0.99)
    monkeypatch.setattr(learner, "_lesson", lambda examples: pytest.fail("a second pass"))
    for seed in range(8):  # more texts than one step takes between two of them
        target.generate(**prompts(1, seed), max_new_tokens=4)
    learner.balance = 1.0
    learner.spend(0.0)
    learner.balance = 1.0
    learner.spend(0.0)
    assert learner.num_steps >= 2


def test_calls_in_inference_mode_are_learned_from(target, monkeypatch):
    learner = learner_of(target, "eagle3", share=0.99)
    monkeypatch.setattr(learner, "_lesson", lambda examples: pytest.fail("a second pass"))
    for seed in range(8):
        with torch.inference_mode():
            target.generate(**prompts(1, seed), max_new_tokens=4)
    learner.balance = 1.0
    learner.spend(0.0)
    assert learner.num_steps > 0
    assert not learner.is_frozen


def test_long_texts_are_recorded_up_to_their_limit(target):
    learner = learner_of(target, "eagle3")
    learner.max_length = 12
    target.generate(**prompts(2), max_new_tokens=20, num_draft_tokens=3)
    assert [text.example.num_tokens for _, text in learner.recorded] == [12, 12]
    check(learner)


def test_no_more_texts_at_a_time_until_they_are_old(target):
    learner = learner_of(target, "draft model")
    target.generate(**prompts(6), max_new_tokens=8)
    first = list(learner.recorded)
    assert len(first) == 4
    target.generate(**prompts(1, seed=5), max_new_tokens=8)
    assert list(learner.recorded) == first
    learner.num_texts += 40
    target.generate(**prompts(1, seed=5), max_new_tokens=8)
    *others, (_, newest) = learner.recorded
    assert others == first[1:]
    assert newest.example == learner.texts[-1][0]


@pytest.mark.parametrize("kind", ["draft model", "eagle3"])
@pytest.mark.parametrize("other", ["suffix", "small", "head", None])
def test_calls_with_another_draft(target, kind, other):
    learner = learner_of(target, kind)
    fields = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
    drafts = {"small": tiny.llama(seed=3), "head": heads.eagle3(target, **fields)}
    texts = [ids[-3:].tolist() for ids in prompts(1)["input_ids"]]
    completions = hs.generate_batches(target, texts, max_new_tokens=8, draft_model=drafts.get(other, other))
    assert len(list(completions)) == 1
    assert not learner.is_frozen
    assert len(learner.recorded) == (kind == "draft model"), "states are those that the other draft reads"
    if kind == "draft model":
        check(learner)


def test_an_error_ends_recording_and_not_the_call(target, monkeypatch):
    expected = target.generate(**prompts(2), max_new_tokens=8, do_sample=False)
    learner = learner_of(target, "eagle3")
    monkeypatch.setattr(followed.Recording, "end_round", lambda self, batch: 1 / 0)
    with pytest.warns(UserWarning, match="learns no more, and is used as it is: ZeroDivisionError"):
        found = target.generate(**prompts(2), max_new_tokens=8, do_sample=False)
    assert torch.equal(found, expected)
    assert not learner.recorded


def test_what_dropout_changes_is_not_recorded(target):
    learner = learner_of(target.train(), "draft model")
    target.generate(**prompts(2), max_new_tokens=8)
    assert len(learner.recorded) == 2  # `train` alone changes nothing
    target.model.layers[0].self_attn.attention_dropout = 0.1
    learner.recorded.clear()
    target.generate(**prompts(2), max_new_tokens=8)
    assert not learner.recorded


def test_copies_do_not_carry_logits(target):
    learner = learner_of(target, "draft model")
    target.generate(**prompts(2), max_new_tokens=8)
    assert len(learner.recorded) == 2
    assert not copy.deepcopy(target).generate.config.learn.recorded


def test_a_text_of_small_weight_is_seldom_learned_from(target):
    learner = learner_of(target, "draft model", weigh=lambda prompt, answer: float(prompt[0] != 7) or 0.25)
    kept = 0
    for number in range(200):
        prompt = [7, 1 + number % 50, 1 + number // 50]
        if not learner.has_room_for(prompt, 0):
            continue
        learner.take([8, *prompt], [1, 2])
        learner.take(prompt, [1, 2], "what is known")
        kept += len(learner.recorded)
        learner.recorded.clear()
    assert 25 < kept < 60
