"""Plain decoding is the test: the same tokens as `model.generate` without a draft, row by row, in float32."""

import itertools

import pytest
import torch
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling, set_seed

import hf_speculative as hs
from hf_speculative.sampling import samplers
from hf_speculative.schedules import ConfidenceStop, Constant, Heuristic
from tests.support import tiny
from tests.support.cases import slow_but, types_and_attentions
from tests.support.plain import NEW, Collect, agrees, ours, plain, same_as_plain


@pytest.mark.parametrize("model_type, attention", types_and_attentions())
def test_greedy_on_every_architecture(model_type, attention):
    """Three unequal rows, past any sliding window, and each row of the batch as it is on its own."""
    model = tiny.build(model_type, attention=attention)
    inputs, drafts = tiny.prompts(3), {"draft_model": tiny.noisy_copy(model), "num_draft_tokens": 4}
    stats = same_as_plain(model, inputs, **drafts)
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens, "the draft must agree in part"
    batch = ours(model, inputs, **drafts)
    for row in range(3):
        assert ours(model, tiny.unpadded(inputs, row), **drafts)[0, -NEW:].tolist() == batch[row, -NEW:].tolist()


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["noisy", "self", "unrelated"])
def test_greedy_with_good_and_bad_drafts(target, draft, unrelated, kind, batch_size):
    chosen = {"noisy": draft, "self": target, "unrelated": unrelated}[kind]
    for num_draft_tokens in (1, 7):
        same_as_plain(target, tiny.prompts(batch_size), draft_model=chosen, num_draft_tokens=num_draft_tokens)


def test_one_token_prompt(target, draft):
    same_as_plain(target, {"input_ids": torch.tensor([[10]])}, draft_model=draft)


def test_a_draft_of_its_own_target_needs_few_passes(target):
    """k + 1 tokens a pass: a bonus token lost costs speed, and no other test would see it."""
    twin = tiny.noisy_copy(target, noise=0)
    stats = same_as_plain(target, tiny.prompts(1), {"max_new_tokens": 26}, draft_model=twin, num_draft_tokens=4)
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
    assert same_as_plain(model, tiny.prompts(2), draft_model=draft).num_accepted_draft_tokens > 0
    same_as_plain(model, tiny.prompts(2), {"do_sample": True}, draft_model=draft)


LOOKUP = {"prompt_lookup_num_tokens": 3, "num_assistant_tokens_schedule": "constant"}


@pytest.mark.parametrize("sampled", [False, True])
def test_logits_narrower_than_the_vocabulary(sampled):
    """ImageGPT never predicts its start token; processors and noise go by the logits, not by the config."""
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = tiny._spread(ImageGPTForCausalImageModeling(ImageGPTConfig(vocab_size=tiny.VOCAB, **sizes)).eval())
    settings = {"bad_words_ids": [[7, 3]], "repetition_penalty": 1.3, "max_new_tokens": NEW, "do_sample": sampled}
    call = tiny.prompts(2, vocab_size=tiny.VOCAB - 1) | settings | {"pad_token_id": 0}
    for source in ({"draft_model": tiny.noisy_copy(model)}, {"draft_model": tiny.llama()}, LOOKUP):
        assert agrees(model, call, **source).num_draft_tokens > 0
    # One that is narrower drafts for a common one, too.
    agrees(tiny.llama(), call | {"do_sample": False}, draft_model=model)


SCHEDULES = (Constant(1), Constant(4), Heuristic(2), ConfidenceStop(Constant(6), 0.3))
WARPERS = (
    {"temperature": 0.9, "top_k": 0},
    {"temperature": 1.3, "top_k": 12},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 0},
    {"min_p": 0.05, "repetition_penalty": 1.4, "top_k": 0},
    {"no_repeat_ngram_size": 2, "bad_words_ids": [[3], [4, 5]], "typical_p": 0.9},
    {"eos_token_id": [7, 11, 13], "top_k": 0},
)


@pytest.mark.parametrize("quarter", slow_but(range(4), 0))
def test_reproducible_sampling_equals_plain_sampling(target, draft, unrelated, quarter):
    """A seed for each of drafters x schedules x warpers, any two of which meet in each quarter of the cases."""
    sizes = itertools.cycle([1, 3, 4, 3, 1])  # in step with none of the others
    drafters = [*({"draft_model": one} for one in (draft, unrelated, target)), {"prompt_lookup_num_tokens": 3}]
    cases = itertools.product(*map(enumerate, (drafters, SCHEDULES, WARPERS)))
    for seed, (((i, drafter), (j, schedule), (k, warper)), batch_size) in enumerate(zip(cases, sizes)):  # noqa: B905
        if (i + j + k) % 4 != quarter:
            continue
        inputs = tiny.prompts(batch_size, seed=seed)
        call = inputs | warper | {"do_sample": True, "max_new_tokens": 14, "pad_token_id": 0}
        try:
            agrees(target, call, seed, **drafter, schedule=schedule)
        except AssertionError as error:
            raise AssertionError(seed, i, j, batch_size, warper) from error


def test_reproducible_sampling_redraws_noise_rather_than_keep_it(target, draft, unrelated, monkeypatch):
    """Rows that drift apart need noise of many steps: with room for one step only, the output is the same."""
    monkeypatch.setattr(samplers, "MOST_NOISE", 1)
    same_as_plain(target, tiny.prompts(4), {"do_sample": True, "top_k": 0, "max_new_tokens": 40}, draft_model=draft)


def test_reproducible_sampling_with_a_generator(target, draft):
    kwargs = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0}
    set_seed(3)
    expected = target.generate(**kwargs)
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    config = hs.SpeculativeConfig(generator=generator, reproducible=True)
    found = hs.generate(target, **kwargs, draft_model=draft, speculative_config=config)
    assert found.tolist() == expected.tolist() and torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_the_same_seed_gives_the_same_tokens_the_first_and_the_fifth_time(target, draft, schedule):
    kwargs = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0}

    def once():
        set_seed(7)
        return hs.generate(target, **kwargs, draft_model=draft, num_assistant_tokens_schedule=schedule).tolist()

    first = once()
    assert all(once() == first for _ in range(4))
    configs = [hs.SpeculativeConfig(generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    a, b = (hs.generate(target, **kwargs, draft_model=draft, speculative_config=one).tolist() for one in configs)
    assert a == b


@pytest.mark.parametrize("num_rows", [1, 3])
def test_streaming(target, draft, num_rows):
    """Steps come when every running row has reached them, with padding for rows that are done, as in plain generate."""
    inputs = tiny.prompts(num_rows)
    eos = plain(target, inputs)[num_rows // 2, 10].item()
    streamer, reference = Collect(), Collect()
    out = ours(target, inputs, draft_model=draft, streamer=streamer, eos_token_id=eos)
    plain(target, inputs, streamer=reference, eos_token_id=eos)
    assert torch.stack([piece.view(-1) for piece in streamer.pieces[1:]], 1).tolist() == out[:, 7:].tolist()
    assert [piece.tolist() for piece in streamer.pieces] == [piece.tolist() for piece in reference.pieces]
    assert streamer.ended
