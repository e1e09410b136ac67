"""Plain decoding is the test: the same tokens as `model.generate` without a draft, row by row, in float32."""

import itertools

import pytest
import torch
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling, set_seed

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.schedules import ConfidenceStop, Constant, Heuristic
from tests.support import tiny

NEW = 24


def same_as_plain(model, inputs, **kwargs):
    plain = {
        k: v for k, v in kwargs.items() if k in ("max_new_tokens", "pad_token_id", "repetition_penalty", "eos_token_id")
    }
    expected = model.generate(**inputs, do_sample=False, **{"max_new_tokens": NEW, "pad_token_id": 0} | plain)
    found = hs.generate(model, **inputs, do_sample=False, **{"max_new_tokens": NEW, "pad_token_id": 0} | kwargs)
    assert found.tolist() == expected.tolist()
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_greedy_on_every_architecture(model_type, attention):
    """Three unequal rows, past any sliding window, and each row of the batch as it is on its own."""
    model = tiny.build(model_type, attention=attention)
    draft = tiny.noisy_copy(model)
    inputs = tiny.prompts(3)
    with hs.record() as stats:
        batch = same_as_plain(model, inputs, draft_model=draft, num_draft_tokens=4)
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens, "the draft must agree in part"
    for row in range(3):
        alone = tiny.unpadded(inputs, row)
        single = hs.generate(model, **alone, draft_model=draft, num_draft_tokens=4, max_new_tokens=NEW, do_sample=False)
        assert single[0, -NEW:].tolist() == batch[row, -NEW:].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["noisy", "self", "unrelated"])
def test_greedy_with_good_and_bad_drafts(target, draft, unrelated, kind, batch_size):
    chosen = {"noisy": draft, "self": target, "unrelated": unrelated}[kind]
    for num_draft_tokens in (1, 2, 7):
        same_as_plain(target, tiny.prompts(batch_size), draft_model=chosen, num_draft_tokens=num_draft_tokens)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_prompt_lookup(target, batch_size):
    inputs = tiny.prompts(batch_size, width=12)
    inputs["input_ids"][:, -5:] = torch.tensor([5, 6, 7, 5, 6])
    with hs.record() as stats:
        same_as_plain(target, inputs, prompt_lookup_num_tokens=3, max_new_tokens=60)
    assert stats.num_accepted_draft_tokens > 0


def test_one_token_prompt(target, draft):
    same_as_plain(target, {"input_ids": torch.tensor([[10]])}, draft_model=draft)


def test_a_draft_of_its_own_target_needs_few_passes(target):
    """k + 1 tokens a pass: a bonus token lost costs speed, and no other test would see it."""
    twin = tiny.noisy_copy(target, noise=0)
    with hs.record() as stats:
        same_as_plain(target, tiny.prompts(1), draft_model=twin, num_draft_tokens=4, max_new_tokens=26)
    assert stats.num_target_forwards == 1 + 5  # the prompt, then five rounds of five tokens
    assert stats.num_draft_forwards == 5 * 4


@pytest.mark.parametrize("extra", [16, -16])
def test_padded_vocabularies(extra):
    """Qwen2.5 pairs: one tokenizer, embeddings padded to different widths. No tokenizer is asked for."""
    model, draft = tiny.llama(vocab_size=400), tiny.llama(vocab_size=400 - extra)
    with torch.no_grad():
        shared = min(model.vocab_size, draft.vocab_size)
        state = {k: v for k, v in model.state_dict().items() if v.shape == draft.state_dict()[k].shape}
        draft.load_state_dict(state, strict=False)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            draft.state_dict()[name][:shared] = model.state_dict()[name][:shared]
    with hs.record() as stats:
        same_as_plain(model, tiny.prompts(2), draft_model=draft)
    assert stats.num_accepted_draft_tokens > 0
    settings = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": NEW, "pad_token_id": 0}
    set_seed(0)
    expected = model.generate(**settings)
    set_seed(0)
    assert hs.generate(model, **settings, draft_model=draft, reproducible=True).tolist() == expected.tolist()


LOOKUP = {"prompt_lookup_num_tokens": 3, "num_assistant_tokens_schedule": "constant"}


@pytest.mark.parametrize("sampled", [False, True])
def test_logits_narrower_than_the_vocabulary(sampled):
    """ImageGPT never predicts its start token; processors and noise go by the logits, not by the config."""
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = tiny._spread(ImageGPTForCausalImageModeling(ImageGPTConfig(vocab_size=tiny.VOCAB, **sizes)).eval())
    settings = {"bad_words_ids": [[7, 3]], "repetition_penalty": 1.3, "max_new_tokens": NEW, "do_sample": sampled}
    call = tiny.prompts(2, vocab_size=tiny.VOCAB - 1) | settings | {"pad_token_id": 0}
    draft, switches = tiny.noisy_copy(model), {"reproducible": True} if sampled else {}
    for source in ({"draft_model": draft}, {"draft_model": tiny.llama()}, LOOKUP):
        set_seed(0)
        expected = model.generate(**call)
        set_seed(0)
        with hs.record() as stats:
            assert hs.generate(model, **call, **switches, **source).tolist() == expected.tolist()
        assert stats.num_draft_tokens > 0
    # One that is narrower drafts for a common one, too.
    call |= {"do_sample": False}
    target = tiny.llama()
    assert hs.generate(target, **call, draft_model=model).tolist() == target.generate(**call).tolist()


def test_learned_positions_at_the_very_end():
    """Rows near the last position while others draft on: nothing is looked up past the position table."""
    model = tiny.build("gpt2")
    inputs = tiny.prompts(3, width=100)
    same_as_plain(model, inputs, draft_model=tiny.noisy_copy(model), num_draft_tokens=6, max_new_tokens=28)


def test_a_draft_with_a_shorter_context_falls_back_to_plain(target):
    short = tiny.build("gpt2", n_positions=20)
    with hs.record() as stats:
        same_as_plain(target, tiny.prompts(2), draft_model=short, max_new_tokens=40)
    assert 0 < stats.num_spec_steps < stats.num_rounds


# Coupled sampling: the sampled output, seed for seed

DRAFTERS = {
    "noisy": lambda target, draft, unrelated: {"draft_model": draft},
    "unrelated": lambda target, draft, unrelated: {"draft_model": unrelated},
    "self": lambda target, draft, unrelated: {"draft_model": target},
    "lookup": lambda target, draft, unrelated: {"prompt_lookup_num_tokens": 3},
}
SCHEDULES = {
    "constant 1": Constant(1),
    "constant 4": Constant(4),
    "heuristic": Heuristic(2),
    "confidence": ConfidenceStop(Constant(6), 0.3),
}
WARPERS = {
    "temperature": {"temperature": 0.9, "top_k": 0},
    "top_k": {"temperature": 1.3, "top_k": 12},
    "top_p": {"temperature": 0.7, "top_p": 0.8, "top_k": 0},
    "min_p and penalty": {"min_p": 0.05, "repetition_penalty": 1.4, "top_k": 0},
    "bans": {"no_repeat_ngram_size": 2, "bad_words_ids": [[3], [4, 5]], "typical_p": 0.9},
    "eos": {"eos_token_id": [7, 11, 13], "top_k": 0},
}


def test_reproducible_sampling_equals_plain_sampling(target, draft, unrelated):
    """A seed for each of drafters x schedules x warpers; the generator ends where plain leaves it, too."""
    cases = itertools.product(DRAFTERS, SCHEDULES, WARPERS)
    sizes = itertools.cycle([1, 3, 4, 3, 1])  # in step with none of the others
    for seed, ((drafter, schedule, warper), batch_size) in enumerate(zip(cases, sizes)):  # noqa: B905
        inputs = tiny.prompts(batch_size, seed=seed)
        kwargs = inputs | WARPERS[warper] | {"do_sample": True, "max_new_tokens": 14, "pad_token_id": 0}
        set_seed(seed)
        expected, rand = target.generate(**kwargs), torch.rand(1)
        set_seed(seed)
        config = SpeculativeConfig(schedule=SCHEDULES[schedule], reproducible=True)
        found = hs.generate(target, **kwargs, **DRAFTERS[drafter](target, draft, unrelated), speculative_config=config)
        assert found.tolist() == expected.tolist(), (seed, drafter, schedule, batch_size, warper)
        assert torch.rand(1) == rand, (seed, drafter, schedule, batch_size, warper)


def test_reproducible_sampling_redraws_noise_rather_than_keep_it(target, draft, unrelated, monkeypatch):
    """Rows that drift apart need noise of many steps: with room for one step only, the output is the same."""
    from hf_speculative.call import parts as assembly

    class Forgetful(assembly.Coupled):
        def __init__(self, *args):
            super().__init__(*args, max_bytes=1)
            assert self.max_kept == 1

    kwargs = tiny.prompts(4) | {"do_sample": True, "top_k": 0, "max_new_tokens": 40, "pad_token_id": 0}
    set_seed(5)
    expected = target.generate(**kwargs)
    monkeypatch.setattr(assembly, "Coupled", Forgetful)
    set_seed(5)
    assert hs.generate(target, **kwargs, draft_model=draft, reproducible=True).tolist() == expected.tolist()


def test_reproducible_sampling_saves_target_passes(target):
    kwargs = tiny.prompts(3) | {"do_sample": True, "max_new_tokens": 40, "pad_token_id": 0}
    with hs.record() as stats:
        hs.generate(target, **kwargs, draft_model=tiny.noisy_copy(target, noise=0.01), reproducible=True)
    assert stats.num_target_forwards < 20


def test_reproducible_sampling_with_a_generator(target, draft):
    kwargs = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0}
    set_seed(3)
    expected = target.generate(**kwargs)
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    found = hs.generate(
        target,
        **kwargs,
        draft_model=draft,
        reproducible=True,
        speculative_config=hs.SpeculativeConfig(generator=generator),
    )
    assert found.tolist() == expected.tolist() and torch.equal(before, torch.get_rng_state())


def test_num_return_sequences_share_the_prefill(target, draft):
    kwargs = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0, "num_return_sequences": 3}
    set_seed(3)
    expected = target.generate(**kwargs)
    set_seed(3)
    with tiny.CountForwards(target) as forwards:
        found = hs.generate(target, **kwargs, draft_model=draft, reproducible=True)
    assert found.tolist() == expected.tolist()
    assert forwards.lengths[0] == (2, 7) and forwards.lengths[1] == (6, 1)


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_the_same_seed_gives_the_same_tokens_the_first_and_the_tenth_time(target, draft, schedule):
    kwargs = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0}

    def once():
        set_seed(7)
        return hs.generate(target, **kwargs, draft_model=draft, num_assistant_tokens_schedule=schedule).tolist()

    first = once()
    assert all(once() == first for _ in range(9))
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    a, b = (
        hs.generate(target, **kwargs, draft_model=draft, speculative_config=hs.SpeculativeConfig(generator=g)).tolist()
        for g in generators
    )
    assert a == b
