"""Everything a call may hold besides ids: embeddings, caches, positions, chunks, guidance, and what it may ask back."""

import pytest
import tiny
import torch
from architectures.check import build, prompts
from transformers import DynamicCache, SynthIDTextWatermarkingConfig, WatermarkingConfig, set_seed

import hf_speculative as hs

NEW = {"max_new_tokens": 14, "do_sample": False, "pad_token_id": 0}
KINDS = {"llama": "causal", "gemma3_text": "causal", "bloom": "causal", "qwen3_next": "causal", "t5": "seq2seq"}


@pytest.fixture(params=KINDS)
def kind(request):
    model = build(KINDS[request.param], request.param)
    return model, lambda batch_size: prompts(KINDS[request.param], model, batch_size)


@pytest.fixture(params=[name for name, mapping in KINDS.items() if mapping == "causal"])
def decoder(request):
    """Without an encoder: those have a prompt, and transformers guides them."""
    model = build("causal", request.param)
    return model, lambda batch_size: prompts("causal", model, batch_size)


def same(found, expected):
    """Nested tuples of tensors: shapes equal, numbers close."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        return
    assert (found is None) == (expected is None)
    for one, other in zip(found or (), expected or (), strict=True):
        same(one, other)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_all_outputs_are_those_of_plain_generate(kind, batch_size):
    model, inputs = kind
    model.set_attn_implementation("eager")
    settings = NEW | {
        "return_dict_in_generate": True,
        "output_hidden_states": True,
        "output_attentions": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected = model.generate(**inputs(batch_size), **settings)
    found = hs.generate(model, **inputs(batch_size), **settings, draft_model=tiny.noisy_copy(model))
    assert found.keys() - {"from_draft", "survival"} == expected.keys() and found.statistics.num_draft_tokens > 0
    for name in expected.keys() - {"past_key_values"}:
        same(found[name], expected[name])
    caches = [getattr(out.past_key_values, "self_attention_cache", out.past_key_values) for out in (found, expected)]
    for ours, theirs in zip(*(cache.layers for cache in caches), strict=True):
        if hasattr(theirs, "keys"):
            same((ours.keys, ours.values), (theirs.keys, theirs.values))
        if hasattr(theirs, "recurrent_states"):
            same(ours.recurrent_states[0], theirs.recurrent_states[0])
        assert not getattr(ours, "record_past", False)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_second_turn_feeds_only_what_is_new(batch_size):
    for name in ("llama", "gemma3_text", "bloom", "qwen3_next"):
        model = build("causal", name)
        draft, cache = tiny.noisy_copy(model), DynamicCache(config=model.config)
        first = prompts("causal", model, batch_size)
        turn = hs.generate(
            model, **first, **NEW, past_key_values=cache, return_dict_in_generate=True, draft_model=draft
        )
        assert turn.past_key_values is cache and cache.get_seq_length() == turn.sequences.shape[1] - 1
        more = torch.randint(1, 60, (batch_size, 4))
        mask = torch.cat([first["attention_mask"], torch.ones(batch_size, NEW["max_new_tokens"] + 4).long()], 1)
        second = {"input_ids": torch.cat([turn.sequences, more], 1), "attention_mask": mask}
        expected = model.generate(**second, **NEW)
        with tiny.CountForwards(model) as forwards:
            found = hs.generate(model, **second, **NEW, past_key_values=cache, draft_model=draft)
        assert found.tolist() == expected.tolist()
        assert forwards.lengths[0] == (batch_size, 5), "the last token of the turn before, and the new ones"


@pytest.mark.parametrize("with_ids", [True, False])
def test_inputs_embeds(target, draft, with_ids):
    inputs = tiny.prompts(3)
    embeds = target.get_input_embeddings()(inputs["input_ids"]).detach()
    given = {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]}
    if with_ids:
        given["input_ids"] = inputs["input_ids"]
    expected = target.generate(**given, **NEW)
    for source in ({"draft_model": draft}, {"prompt_lookup_num_tokens": 3}):
        with hs.record() as stats:
            assert hs.generate(target, **given, **NEW, **source).tolist() == expected.tolist()
        assert stats.num_draft_tokens > 0


def test_inputs_embeds_ask_for_everything_back(target, draft):
    inputs = tiny.prompts(3)
    given = {"inputs_embeds": target.get_input_embeddings()(inputs["input_ids"]).detach()}
    given |= {"attention_mask": inputs["attention_mask"], "return_dict_in_generate": True, "output_hidden_states": True}
    expected = target.generate(**given, **NEW)
    found = hs.generate(target, **given, **NEW, draft_model=draft)
    same(found.hidden_states, expected.hidden_states)
    assert found.sequences.tolist() == expected.sequences.tolist()


def test_inputs_embeds_several_sequences_a_prompt(target, draft):
    embeds = target.get_input_embeddings()(tiny.prompts(1)["input_ids"]).detach()
    settings = NEW | {"inputs_embeds": embeds, "do_sample": True, "num_return_sequences": 3}
    set_seed(0)
    expected = target.generate(**settings)
    set_seed(0)
    assert hs.generate(target, **settings, draft_model=draft, reproducible=True).tolist() == expected.tolist()


def test_a_universal_draft_needs_the_ids(target):
    embeds = target.get_input_embeddings()(tiny.prompts(1)["input_ids"]).detach()
    with pytest.raises(ValueError, match=r"BloomForCausalLM needs the prompt's ids.*pass `input_ids=`"):
        hs.generate(target, inputs_embeds=embeds, **NEW, draft_model=build("causal", "bloom"))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "bloom", "qwen3_next", "lfm2"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_cache_after_a_stop_inside_a_block(name, batch_size):
    """What was accepted beyond the stop is not the text's: the cache that comes back ends where plain decoding's does."""
    model = build("causal", name)
    first = prompts("causal", model, batch_size)
    plain = model.generate(**first, **NEW)
    new = plain[:, first["input_ids"].shape[1] :].tolist()
    eos = [[t for i, t in enumerate(row) if t not in row[:i]][-1] for row in new]  # each row's last new kind of token
    stops = NEW | {"eos_token_id": eos, "return_dict_in_generate": True}
    expected = model.generate(**first, **stops, past_key_values=DynamicCache(config=model.config))
    cache = DynamicCache(config=model.config)
    found = hs.generate(model, **first, **stops, past_key_values=cache, draft_model=model)
    assert found.sequences.tolist() == expected.sequences.tolist() and found.statistics.num_spec_steps
    assert cache.get_seq_length() == expected.past_key_values.get_seq_length()
    for ours, theirs in zip(cache.layers, expected.past_key_values.layers, strict=True):
        if hasattr(theirs, "keys"):
            assert ours.keys.shape == theirs.keys.shape
    done = found.sequences.shape[1] - first["input_ids"].shape[1]
    more = torch.randint(1, 60, (batch_size, 4))
    kept = torch.cat([first["attention_mask"], torch.ones(batch_size, done + 4).long()], 1)
    second = {"input_ids": torch.cat([found.sequences, more], 1), "attention_mask": kept}
    again = model.generate(**second, **NEW, past_key_values=expected.past_key_values).tolist()
    assert model.generate(**second, **NEW, past_key_values=cache).tolist() == again


def test_positions_of_the_users_own():
    """A gap in them, say for a prompt cut in the middle: plain decoding counts on from the last."""
    target = tiny.build("gpt2")
    draft = tiny.noisy_copy(target)
    inputs = tiny.prompts(1) | {"position_ids": torch.tensor([[0, 1, 2, 3, 9, 10, 11]])}
    expected = target.generate(**inputs, **NEW)
    assert expected.tolist() != target.generate(**tiny.prompts(1), **NEW).tolist()
    assert hs.generate(target, **inputs, **NEW, draft_model=draft).tolist() == expected.tolist()


def test_a_prompt_in_chunks(decoder):
    model, inputs = decoder
    given = inputs(3)
    with tiny.CountForwards(model) as forwards:
        found = hs.generate(model, **given, **NEW, prefill_chunk_size=3, draft_model=tiny.llama(vocab_size=60))
    assert found.tolist() == model.generate(**given, **NEW).tolist()
    assert (3, 3) in forwards.lengths


NEGATIVE = torch.randint(1, 60, (3, 4), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("negative", [None, NEGATIVE], ids=["last token", "negative prompt"])
def test_guidance(decoder, negative, do_sample):
    model, inputs = decoder
    settings = NEW | {"guidance_scale": 6.0, "do_sample": do_sample, "negative_prompt_ids": negative}
    set_seed(0)
    expected = model.generate(**inputs(3), **settings)
    set_seed(0)
    unguided = model.generate(**inputs(3), **NEW | {"do_sample": do_sample})
    assert expected.tolist() != unguided.tolist(), "guidance changes something"
    set_seed(0)
    extra = {"reproducible": True} if do_sample else {}
    found = hs.generate(model, **inputs(3), **settings, draft_model=tiny.noisy_copy(model, 0.05), **extra)
    assert found.tolist() == expected.tolist()


def test_guidance_with_padded_negative_prompts_and_rows_that_stop():
    model = tiny.build("gpt2")
    inputs = tiny.prompts(3)
    settings = NEW | {
        "guidance_scale": 1.7,
        "negative_prompt_ids": inputs["input_ids"].flip(0),
        "negative_prompt_attention_mask": inputs["attention_mask"].flip(0),
    }
    plain = model.generate(**inputs, **settings)
    settings["eos_token_id"] = [plain[0, -6].item(), plain[1, -3].item()]
    expected = model.generate(**inputs, **settings)
    found = hs.generate(model, **inputs, **settings, draft_model=tiny.noisy_copy(model, 0.05))
    assert found.tolist() == expected.tolist() and (expected[:, 7:] == 0).any()


def test_token_healing():
    target, draft, tokenizer = hs.embedded_pair()
    inputs = tokenizer("for i in ran", return_tensors="pt")
    settings = {"max_new_tokens": 12, "do_sample": False, "token_healing": True, "tokenizer": tokenizer}
    expected = target.generate(**inputs, **settings)
    assert expected[0, : inputs["input_ids"].shape[1]].tolist() != inputs["input_ids"][0].tolist(), (
        "something was healed"
    )
    assert hs.generate(target, **inputs, **settings, draft_model=draft).tolist() == expected.tolist()
    hs.attach(target, draft)
    assert target.generate(**inputs, **settings).tolist() == expected.tolist()
    hs.detach(target)


OPTIONS = {
    "watermark": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.5, bias=2.0)},
    "synthid": {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3)},
    "prefix_allowed_tokens_fn": {
        "prefix_allowed_tokens_fn": lambda row, ids: list(range(int(ids[-1]) % 2 + row, 60, 2)),
    },
    "forced eos": {"forced_eos_token_id": 5, "eos_token_id": 5, "min_new_tokens": 4},
    "suppressed": {
        "begin_suppress_tokens": [3, 4, 17],
        "suppress_tokens": [9, 12],
        "min_length": 12,
        "eos_token_id": 17,
    },
    "bias": {"sequence_bias": [[[3, 5], 8.0], [[7], -4.0]], "bad_words_ids": [[11], [4, 6]]},
    "penalties": {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "exponential_decay_length_penalty": (3, 1.2),
        "eos_token_id": 5,
    },
}


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_on_every_path(option, do_sample):
    for mapping, name in (("causal", "llama"), ("causal", "qwen3_next"), ("seq2seq", "bart")):
        model = build(mapping, name)
        settings = NEW | {"do_sample": do_sample} | OPTIONS[option]
        inputs = prompts(mapping, model, 3)
        set_seed(1)
        expected = model.generate(**inputs, **settings)
        set_seed(1)
        extra = {"reproducible": True} if do_sample else {}
        found = hs.generate(model, **inputs, **settings, draft_model=tiny.noisy_copy(model), **extra)
        assert found.tolist() == expected.tolist(), name
