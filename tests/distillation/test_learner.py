"""`attach(..., learn=...)`: a copy of the draft is trained in use, and takes over where it is accepted more often."""

import copy
import pickle
import threading
import time
import warnings
from collections import Counter
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

import hf_speculative as hs
from hf_speculative.distillation import followed, learner as module
from hf_speculative.distillation.sampling_params import SamplingParams
from hf_speculative.serving.engine import Engine
from tests.support import lessons, tiny, tongues
from tests.support.cases import slow_but

DRAFTS = ("draft model", "eagle3", "dflash")


@pytest.fixture
def target():
    return tiny.llama()


def draft_of(target, kind="draft model"):
    return lessons.new_student(kind, target).draft().eval()


def attached(target, kind="draft model", num_texts=60, **settings):
    learner = hs.Learner(**{"share": 0.99, "learning_rate": 3e-3} | settings)
    examples = lessons.examples(target, num_texts, seed=3) if num_texts else []
    hs.attach(target, draft_of(target, kind), learn=learner, num_draft_tokens=3)
    for example in examples:
        learner.take(example.prompt_ids, example.new_ids)
    return learner


def learn(learner, num_steps):
    """Work until that many steps are made, and judged."""
    for _ in range(20 * num_steps):
        if learner.num_steps >= num_steps and learner.num_steps < learner.next_judgement:
            return
        learner.balance = 1.0
        learner.spend(0.0)
    raise AssertionError("nothing is learned")


def kept(target, learner, **sampling):
    """Tokens a round on the prompts of `attached`; nothing is learned meanwhile, which would go by the clock."""
    with hs.record() as statistics, module.frozen(learner):
        for seed in range(4 if sampling["do_sample"] else 1):
            torch.manual_seed(seed)
            target.generate(**tiny.prompts(40, width=5, seed=3), max_new_tokens=12, **sampling)
    return statistics.mean_acceptance_length


@pytest.mark.parametrize("kind", slow_but(DRAFTS, "eagle3"))
@pytest.mark.parametrize("temperature", slow_but([0.0, 0.7], 0.7))
def test_more_is_accepted_and_greedy_output_stays(target, kind, temperature):
    plain = target.generate(**tiny.prompts(6, seed=9), max_new_tokens=30, do_sample=False)
    learner = attached(target, kind)
    learner.use = SamplingParams(temperature)
    sampling = {"do_sample": True, "temperature": 0.7} if temperature else {"do_sample": False}
    before = kept(target, learner, **sampling)
    learn(learner, 160)
    assert learner.num_taken_over > 0
    assert kept(target, learner, **sampling) > before + 0.05
    assert torch.equal(target.generate(**tiny.prompts(6, seed=9), max_new_tokens=30, do_sample=False), plain)


def test_it_learns_by_itself_while_texts_are_decoded(target):
    learner = hs.Learner(share=0.99)
    hs.attach(target, draft_of(target), learn=learner)
    for seed in range(12):
        target.generate(**tiny.prompts(4, seed=seed), max_new_tokens=20)
    assert learner.num_texts == 48
    assert learner.num_steps > 0


def test_tokens_under_a_seed_are_those_of_plain_generate(target):
    call = tiny.prompts(3) | {"do_sample": True, "max_new_tokens": 20}
    torch.manual_seed(5)
    plain = [target.generate(**call), torch.rand(3)]
    learner = attached(target, "dflash")  # whose blocks are at random places
    torch.manual_seed(5)
    found = [target.generate(**call, reproducible=True), torch.rand(3)]
    assert learner.num_steps > 0
    assert all(map(torch.equal, plain, found))


def test_the_target_and_the_draft_given_stay_as_they_are(target):
    draft = draft_of(target)
    before = [lessons.weights(target), lessons.weights(draft)]
    learner, examples = hs.Learner(share=0.99, learning_rate=3e-3), lessons.examples(target, 60)
    hs.attach(target.train(), draft, learn=learner)
    for example in examples:
        learner.take(example.prompt_ids, example.new_ids)
    learn(learner, 60)
    assert learner.num_taken_over > 0
    assert all(map(torch.equal, before, [lessons.weights(target), lessons.weights(draft)]))
    assert target.training
    assert all(weight.grad is None for weight in target.parameters())


def test_what_is_not_better_does_not_take_over(target, monkeypatch):
    learner = attached(target)
    before = lessons.weights(learner.draft)
    monkeypatch.setattr(learner, "_gain", lambda text: [-0.1, 0.1][len(learner.gains) % 2])
    learn(learner, 20)
    assert learner.num_taken_over == 0
    assert torch.equal(lessons.weights(learner.draft), before)
    assert not torch.equal(lessons.weights(learner.student.module), before)
    monkeypatch.setattr(learner, "_gain", lambda text: -0.1 - 0.01 * (len(learner.gains) % 2))
    learn(learner, 40)
    assert torch.equal(lessons.weights(learner.draft), before)
    learner.next_judgement = learner.num_steps  # at once, before another step
    learner.gains.clear()
    for _ in range(module.ENOUGH + 1):
        learner.balance = 1.0
        learner.spend(0.0)
    assert torch.equal(lessons.weights(learner.student.module), before), "what is clearly worse is thrown away"


def test_no_more_than_its_share_of_the_time(target, monkeypatch):
    learner, clock = attached(target, share=0.05), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(learner, "_go_on", lambda: clock.__setitem__(0, clock[0] + 2.0))
    for num_taken_over, most in ((0, 30), (1, 50)):
        learner.num_taken_over = num_taken_over
        learner.balance = learner.seconds = 0.0
        for _ in range(1000):
            learner.spend(1.0)
        assert most <= learner.seconds <= most + 2  # and one piece of work
    learner.spend(10_000.0)  # such as a server that had nothing to do
    assert learner.balance <= module.MOST_SAVED


def test_a_failure_ends_learning_and_not_the_call(target, monkeypatch):
    plain = target.generate(**tiny.prompts(2), max_new_tokens=10)
    learner = attached(target)
    monkeypatch.setattr(learner.optimizer, "step", lambda: 1 / 0)
    with pytest.warns(UserWarning, match="learns no more, and is used as it is: ZeroDivisionError"):
        found = target.generate(**tiny.prompts(2), max_new_tokens=10)
    assert torch.equal(found, plain)
    assert learner.is_frozen
    num_steps = learner.num_steps
    target.generate(**tiny.prompts(2), max_new_tokens=10)
    assert learner.num_steps == num_steps


def test_texts_are_learned_from_by_their_weight(target, monkeypatch):
    learner = attached(target, weigh=lambda prompt, answer: answer[0] % 3)
    weights = dict(learner.texts)
    assert {1, 2} == {*weights.values()} and all(example.new_ids[0] % 3 == weight for example, weight in weights.items())
    learned, lesson = Counter[float](), learner._lesson
    monkeypatch.setattr(
        learner, "_lesson", lambda texts: learned.update(weights.get(text, 0) for text in texts) or lesson(texts)
    )
    learn(learner, 120)
    nums = Counter(weights.values())
    assert 1.4 < learned[2] / nums[2] / (learned[1] / nums[1]) < 2.8


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_only_ratios_of_weights_count(scale, monkeypatch):
    learned = []
    for weight in (1.0, scale):
        learner = attached(tiny.llama(), weigh=lambda prompt, answer, weight=weight: weight)
        texts, lesson = Counter(), learner._lesson
        monkeypatch.setattr(learner, "_lesson", lambda given, texts=texts, lesson=lesson: texts.update(given) or lesson(given))
        learn(learner, 20)
        learned.append(texts)
    assert learned[0] == learned[1]


@pytest.mark.parametrize("weigh, error", [(lambda *text: -1, "ValueError: `weigh` gave -1"), (lambda: 1, "TypeError")])
def test_a_weight_that_is_none_ends_learning_and_not_the_call(target, weigh, error):
    plain = target.generate(**tiny.prompts(2), max_new_tokens=10)
    learner = attached(target, num_texts=0, weigh=weigh)
    with pytest.warns(UserWarning, match=error):
        assert torch.equal(target.generate(**tiny.prompts(2), max_new_tokens=10), plain)
    assert learner.is_frozen


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_it_learns_in_every_mode_of_torch(target, mode):
    learner = attached(target)
    with mode():
        target.generate(**tiny.prompts(2), max_new_tokens=10)
    assert learner.num_steps > 0
    assert not learner.is_frozen


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_folder_keeps_what_was_learned(target, tmp_path, kind):
    learner = attached(target, kind, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    learn(learner, 60)
    assert learner.num_taken_over > 0
    again = hs.Learner(tmp_path)
    other = tiny.llama()
    hs.attach(other, draft_of(other, kind), learn=again)
    torch.testing.assert_close(lessons.weights(again.draft), lessons.weights(learner.draft))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_engine_learns_from_its_requests(target):
    learner = hs.Learner(share=0.99)
    hs.attach(target, draft_of(target), learn=learner)
    with closing(Engine(target, max_lanes=4)) as engine:
        requests = [engine.submit([5, 6, 7 + n], lambda _: None, lambda _: None, max_new_tokens=12) for n in range(30)]
        deadline = time.monotonic() + 60
        while engine.num_running + engine.num_waiting and time.monotonic() < deadline:
            time.sleep(0.01)
    assert learner.num_texts == len(requests)
    assert learner.num_steps > 0


def test_an_engine_without_requests_learns_on_for_a_while(target):
    """Each text a few times; requests come between two pieces of work."""
    learner = hs.Learner(share=1e-6)
    hs.attach(target, draft_of(target), learn=learner)
    with closing(Engine(target, max_lanes=4)) as engine:

        def answer(start: int) -> None:
            ended = [threading.Event() for _ in range(30)]
            for number, event in enumerate(ended):
                prompt = [5, 6, start + number]
                engine.submit(prompt, lambda _: None, lambda _, event=event: event.set(), max_new_tokens=12)
            assert all(event.wait(60) for event in ended)

        for start in (7, 31):
            answer(start)
            before, deadline = learner.num_steps, time.monotonic() + 60
            while learner.has_more_to_learn() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert learner.num_steps > before and not learner.has_more_to_learn()
    assert learner.num_steps <= 60 * module.TIMES_WHEN_IDLE / module.TEXTS + 1


def test_a_copy_of_the_model_learns_apart(target):
    learner = attached(target)
    other = copy.deepcopy(target)
    again = pickle.loads(pickle.dumps(target))
    for one in (other, again):
        own = one.generate.config.learn
        assert own is not learner and own.teacher.target is one
        assert own.draft is one.generate.draft_model
        learn(own, 20)
    assert learner.num_steps == 0


def test_short_texts_and_long_ones(target):
    learner = attached(target, num_texts=0)
    learner.take([1], [2])
    assert learner.num_texts == 0
    learner.take(list(range(600)), list(range(50)))
    (text,) = [*(text for text, _ in learner.texts), *learner.held_out]
    assert text.num_tokens == 127  # `target` has 128 positions
    assert text.prompt_ids == tuple(range(600 - 77, 600))


def test_models_without_a_limit_of_positions(target, monkeypatch):
    monkeypatch.setattr(module, "max_positions_of", lambda model: None)
    assert attached(target).max_length == module.MAX_LENGTH


def test_nothing_is_judged_by_what_is_learned(target):
    learner = attached(target, num_texts=0)
    for number in range(60):
        learner.take([number % 2, 3], [number, 5, 6])  # two prompts are enough
    for number in range(60):
        learner.take([number % 6, 4], [number, 5, 6])
    learned, judged = ({text.prompt_ids for text in texts} for texts in ((text for text, _ in learner.texts), learner.held_out))
    assert learned and judged and not learned & judged


def test_the_last_prompts_are_remembered(monkeypatch):
    monkeypatch.setattr(followed, "MOST_PROMPTS", 4)
    is_held_out = followed.HeldOut()
    assert [is_held_out([number]) for number in range(20)] == [number % 5 == 1 for number in range(20)]
    assert len(is_held_out.known) == 4 and is_held_out([16]) and not is_held_out([19])


def test_a_draft_in_training_mode_is_judged_without_dropout():
    config = LlamaConfig(
        vocab_size=tiny.VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config.attention_dropout = 0.5
    target = tiny.llama()
    learner = hs.Learner()
    hs.attach(target, LlamaForCausalLM(config).train(), learn=learner)
    (example,) = lessons.examples(target, 1)
    assert learner._gain(example) == 0


def test_a_setting_that_plain_generate_takes(target):
    call = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 8, "top_p": 0.0}
    torch.manual_seed(3)
    plain = target.generate(**call)
    learner = attached(target)
    torch.manual_seed(3)
    assert torch.equal(target.generate(**call, reproducible=True), plain)
    assert learner.num_steps > 0


def test_random_numbers_of_all_devices_stay(target, monkeypatch):
    learner = attached(target, "dflash")
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("the global generators are seeded"))
    before = torch.get_rng_state()
    learn(learner, 40)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_evaluation_is_not_learned_from():
    target, draft, tokenizer = hs.embedded_pair()
    learner = hs.Learner()
    hs.attach(target, draft, learn=learner)
    hs.evaluate(target, dataset=["import os\n"], tokenizer=tokenizer, max_new_tokens=4, progress=False)
    assert learner.num_texts == 0 and not learner.is_frozen
    target.generate(**tokenizer("import os\n", return_tensors="pt"), max_new_tokens=4)
    assert learner.num_texts == 1


def test_each_model_has_its_own(target):
    learner, other = attached(target), tiny.llama(seed=1)
    with pytest.raises(ValueError, match="a learner of another model"):
        hs.attach(other, draft_of(other), learn=learner)
    config = hs.SpeculativeConfig(learn=learner)
    with pytest.raises(ValueError, match="begins with `attach"):
        hs.generate(other, **tiny.prompts(1), max_new_tokens=4, draft_model=draft_of(other), speculative_config=config)
    draft = learner.draft
    with pytest.raises(ValueError, match="frozen"):
        hs.attach(target, _frozen(target), learn=learner)
    assert learner.draft is draft, "what was refused changes nothing"


def test_a_folder_with_a_draft_that_does_not_fit(target, tmp_path):
    tiny.llama(vocab_size=2000).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"`learn='.*'` holds a draft that is of no use here"):
        hs.attach(target, draft_of(target), learn=tmp_path)


def _frozen(target):
    return draft_of(target).requires_grad_(False)


def _adapted(target):
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings():  # peft asks for names that transformers is about to change
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(draft_of(target), peft.LoraConfig(target_modules=["q_proj"]))


def _quantized(target):
    draft = draft_of(target)
    draft.is_quantized = True  # as transformers marks it
    return draft


@pytest.mark.parametrize(
    "draft, learn, message",
    [
        (lambda target: "suffix", True, "trains a draft model or a head, and `draft_model` is none"),
        (lambda target: None, True, "and `draft_model` is none"),
        (_frozen, True, "all weights of `draft_model` are frozen"),
        (_quantized, True, "are quantized"),
        (_adapted, True, "merge them first"),
        (draft_of, 3, "of type int"),
        (draft_of, "", "names no folder"),
    ],
)
def test_what_cannot_learn_is_refused(target, draft, learn, message):
    with pytest.raises((ValueError, TypeError), match=message):
        hs.attach(target, draft(target), learn=learn)
    assert "generate" not in vars(target)


def test_drafts_of_other_tokenizers_do_not_learn():
    """Texts that were decoded are the target's ids, which mean other tokens to the draft."""
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    moved = tongues.moved(draft, tokenizer, other)
    with pytest.raises(ValueError, match="trains on the target's ids, and `draft_tokenizer` has others"):
        hs.attach(target, moved, learn=True, config=hs.SpeculativeConfig(tokenizer=tokenizer, draft_tokenizer=other))


def test_a_text_that_comes_again_is_judged_by_once(target):
    examples = lessons.examples(target, 60, seed=3)
    learner = attached(target, num_texts=0)
    example = next(one for one in examples if learner.is_held_out(one.prompt_ids))
    for _ in range(16):
        learner.take(example.prompt_ids, example.new_ids)
    assert len(learner.held_out) == 1


def test_it_begins_with_attach(target):
    learner = hs.Learner()
    with pytest.raises(ValueError, match="begins with `attach"):
        config = hs.SpeculativeConfig(learn=learner)
        hs.generate(target, **tiny.prompts(1), max_new_tokens=5, draft_model=draft_of(target), speculative_config=config)
    hs.attach(target, draft_of(target), config=hs.SpeculativeConfig(learn=learner))
    target.generate(**tiny.prompts(1), max_new_tokens=5)
    assert learner.num_texts == 1


def test_false_in_attach_comes_before_a_learner_of_the_config(target):
    learner = hs.Learner()
    hs.attach(target, draft_of(target), learn=False, config=hs.SpeculativeConfig(learn=learner))
    target.generate(**tiny.prompts(1), max_new_tokens=6, do_sample=False)
    assert learner.draft is None


def test_settings_out_of_range():
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            hs.Learner(share=share)
    with pytest.raises(ValueError, match="learning_rate=0"):
        hs.Learner(learning_rate=0)
    with pytest.raises(TypeError, match="weigh"):
        hs.Learner(weigh=0.5)


def test_an_encoder_decoder_model_is_refused():
    model = T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="learn from texts alone"):
        hs.attach(model, copy.deepcopy(model), learn=True)


def test_only_attach_takes_more_than_a_learner(target):
    with pytest.raises(TypeError, match=r"`learn=True` .*attach"):
        hs.SpeculativeConfig(learn=True)


def test_an_interrupted_step_leaves_no_gradients(target, monkeypatch):
    learner = attached(target)
    monkeypatch.setattr(learner.optimizer, "step", Mock(side_effect=KeyboardInterrupt))
    learner.balance = 1.0
    with pytest.raises(KeyboardInterrupt):
        learner.spend(0.0)
    assert all(weight.grad is None for weight in learner.weights) and not learner.is_frozen


def test_prompts_that_are_known_are_few():
    chosen = followed.HeldOut()
    chosen.known = {-number: False for number in range(1, followed.MOST_PROMPTS + 2)}  # two threads were there at once
    chosen([5])
    assert len(chosen.known) == followed.MOST_PROMPTS
