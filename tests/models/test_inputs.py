"""Everything a call may hold besides ids: embeddings, caches, positions, chunks, guidance, and what it may ask back."""

import pytest
import torch
from transformers import (
    GenerationConfig,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    WatermarkingConfig,
    set_seed,
)

import hf_speculative as hs
from hf_speculative.hf_compat import CACHE
from hf_speculative.models import Inputs, inputs_for_draft
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import agrees, same

# Mllama's own, in older transformers
pytestmark = pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")
NEW = {"max_new_tokens": 14, "do_sample": False, "pad_token_id": 0}
#: of Gemma 3n and 4 the last layers read the keys of earlier ones; Gemma 3n and HY v4 keep several states a token
QUICK = ("llama", "gemma3n_text", "hy_v4", "qwen3_next")
CAUSAL = (*QUICK, "gemma3_text", "gemma4_text", "bloom")
KINDS = dict.fromkeys(CAUSAL, "causal") | {"t5": "seq2seq"}
KINDS["mllama"] = "image-text"  # some layers attend to an image, whose keys lie in the text's cache


@pytest.fixture(params=slow_but(KINDS, *QUICK, "t5", "mllama"))
def kind(request):
    model = build(KINDS[request.param], request.param)
    return model, lambda batch_size: prompts(KINDS[request.param], model, batch_size)


@pytest.fixture(params=slow_but(CAUSAL, *QUICK))
def decoder(request):
    """Without an encoder: those have a prompt, and transformers guides them."""
    model = build("causal", request.param)
    return model, lambda batch_size: prompts("causal", model, batch_size)


def test_all_outputs_are_those_of_plain_generate(kind):
    model, inputs = kind
    model.set_attn_implementation("eager")
    asked = ("return_dict_in_generate", "output_hidden_states", "output_attentions", "output_scores", "output_logits")
    settings = NEW | dict.fromkeys(asked, True)
    expected = model.generate(**inputs(3), **settings)
    found = hs.generate(model, **inputs(3), **settings, draft_model=tiny.noisy_copy(model))
    assert found.keys() == expected.keys() and found.statistics.num_draft_tokens > 0
    for name in expected.keys() - {CACHE}:
        same(found[name], expected[name])
    caches = [getattr(out.past_key_values, "self_attention_cache", out.past_key_values) for out in (found, expected)]
    for ours, theirs in zip(*(cache.layers for cache in caches), strict=True):
        if hasattr(theirs, "keys"):
            same((ours.keys, ours.values), (theirs.keys, theirs.values))
        if hasattr(theirs, "recurrent_states"):
            same(ours.recurrent_states[0], theirs.recurrent_states[0])
        assert not getattr(ours, "record_past", False)


@pytest.mark.parametrize("with_ids", [True, False])
def test_inputs_embeds(target, draft, with_ids):
    inputs = tiny.prompts(3)
    embeds = target.get_input_embeddings()(inputs["input_ids"]).detach()
    given = {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]}
    if with_ids:
        given["input_ids"] = inputs["input_ids"]
    for source in ({"draft_model": draft}, {"prompt_lookup_num_tokens": 3}):
        assert agrees(target, given | NEW, **source).num_draft_tokens > 0


def test_a_universal_draft_needs_the_ids():
    target = tiny.llama(vocab_size=99)
    embeds = target.get_input_embeddings()(tiny.prompts(1)["input_ids"]).detach()
    with pytest.raises(ValueError, match=r"GPTNeoForCausalLM needs the prompt's ids.*pass `input_ids=`"):
        hs.generate(target, inputs_embeds=embeds, **NEW, draft_model=build("causal", "gpt_neo"))


@pytest.mark.parametrize("given", ["inputs_embeds", "encoder_outputs"])
@pytest.mark.parametrize(("name", "num_copies"), [("t5", 3), ("bart", 1), ("t5gemma2", 1)])
def test_an_encoder_that_is_given_no_ids(name, given, num_copies):
    """A draft of the target's width reads the same, one of another has to read the ids or is refused."""
    model = build("seq2seq", name)
    ids = torch.randint(3, 60, (2, 8))
    sampled = num_copies > 1
    settings = {"num_return_sequences": num_copies, "do_sample": sampled, "attention_mask": torch.ones_like(ids)}
    switches = {"reproducible": True} if sampled else {}

    def call():  # `generate` repeats the encoder's outputs in place
        values = {"inputs_embeds": model.get_input_embeddings(), "encoder_outputs": model.get_encoder()}
        return NEW | settings | {given: values[given](ids)}

    set_seed(0)
    expected = model.generate(**call()).tolist()
    for source in ({"prompt_lookup_num_tokens": 2}, {"draft_model": tiny.noisy_copy(model, 0.05)}):
        set_seed(0)
        with hs.record() as stats:
            assert hs.generate(model, **call(), **switches, **source).tolist() == expected
    assert stats.draft_acceptance_rate > 0.2, "of the same width, the draft reads what the target reads"
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    tokens = {"decoder_start_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    narrow = T5ForConditionalGeneration(T5Config(vocab_size=model.config.vocab_size, **sizes, **tokens)).eval()
    with tiny.refused(model.get_decoder(), f"`{given}` has another width.*`input_ids=`"):
        hs.generate(model, **call(), draft_model=narrow)
    if given == "encoder_outputs":
        set_seed(0)
        found = hs.generate(model, **call(), input_ids=ids, **switches, draft_model=narrow)
        assert found.tolist() == expected


def test_guidance_without_a_cache_to_guide_by():
    """transformers keeps none of Mamba 2's state for its second pass, which then sees the last token only."""
    model = build("causal", "mamba2")
    with tiny.refused(model, r"guidance_scale=1.5.*`cache_params`.*draft_model=None"):
        hs.generate(model, torch.tensor([[1, 2, 3]]), **NEW, guidance_scale=1.5, prompt_lookup_num_tokens=2)


#: `(rows, 9)` masks that hide more than left padding: a hole, right padding, both sides, a whole row, and one row as ever
ODD_ROWS = "111001111 111111000 001101110 000000000 000111111"
ODD_MASKS = torch.tensor([[int(is_shown) for is_shown in row] for row in ODD_ROWS.split()])
ODD_IDS = torch.randint(1, 60, ODD_MASKS.shape, generator=torch.Generator().manual_seed(7))
ODD_SOURCES = {
    "a draft of its own path": lambda model: {"draft_model": tiny.noisy_copy(model, 0.05)},
    "a universal draft": lambda model: {"draft_model": build("causal", "gpt_neo")},
    "a ragged draft": lambda model: {"draft_model": tiny.llama(vocab_size=model.config.vocab_size)},
    "prompt lookup": lambda model: {"prompt_lookup_num_tokens": 3},
}


#: every source drafts for a ragged and for a universal target
ODD_CASES = [
    ("llama", "a ragged draft"),
    ("llama", "a universal draft"),
    ("gpt_neo", "a draft of its own path"),
    ("gpt_neo", "a ragged draft"),
    ("gemma3_text", "a draft of its own path"),
    ("gpt2", "prompt lookup"),
    ("opt", "a draft of its own path"),
    ("qwen3_next", "a universal draft"),
    ("qwen3_next", "prompt lookup"),
]


@pytest.mark.parametrize("case", slow_but(ODD_CASES, *ODD_CASES[:4]), ids=", ".join)
def test_masks_that_hide_more_than_left_padding(case):
    """Row by row and as a batch, greedy with processors and sampled, several times a prompt."""
    name, source = case
    model = build("causal", name)
    drafts = ODD_SOURCES[source](model)
    greedy = NEW | {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    with hs.record() as stats:
        for rows in (*([row] for row in range(5)), [0, 4], [0, 1, 2, 3, 4]):
            call = {"input_ids": ODD_IDS[rows], "attention_mask": ODD_MASKS[rows]}
            agrees(model, call | greedy, **drafts)
    assert stats.num_draft_tokens > 0
    agrees(model, call | NEW | {"do_sample": True, "num_return_sequences": 2}, **drafts)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_pad_id_inside_the_prompt(target, draft, batch_size):
    """No mask is given, and transformers hides all that looks like padding, from the draft, too."""
    ids = tiny.prompts(batch_size)["input_ids"]
    ids[:, 3] = ids[-1, -1] = 0
    expected = target.generate(ids, **NEW)
    assert expected.tolist() != target.generate(ids, attention_mask=torch.ones_like(ids), **NEW).tolist()
    for source in ({"draft_model": target}, {"draft_model": draft}, {"prompt_lookup_num_tokens": 3}):
        stats = agrees(target, NEW | {"inputs": ids}, **source)
        assert source.get("draft_model") is not target or stats.draft_acceptance_rate == 1
    for shown in (draft, build("causal", "gpt_neo")):  # and not from the draft alone
        prepared = inputs_for_draft(shown, target, Inputs(ids, GenerationConfig(max_length=30), {}), {}, ids)
        assert prepared.attention_mask is None


def test_drafts_that_read_the_targets_own_cache_need_left_padding(target):
    with pytest.raises(ValueError, match=r"assistant_early_exit.*`attention_mask` that hides more than left padding"):
        hs.generate(target, ODD_IDS, attention_mask=ODD_MASKS, **NEW, assistant_early_exit=1)


def test_positions_of_the_users_own():
    """A gap in them, say for a prompt cut in the middle: plain decoding counts on from the last."""
    target = tiny.build("gpt2")
    inputs = tiny.prompts(1) | {"position_ids": torch.tensor([[0, 1, 2, 3, 9, 10, 11]])}
    expected = target.generate(**inputs, **NEW)
    assert expected.tolist() != target.generate(**tiny.prompts(1), **NEW).tolist()
    agrees(target, inputs | NEW, draft_model=tiny.noisy_copy(target))


def test_a_prompt_in_chunks(decoder):
    model, inputs = decoder
    with tiny.CountForwards(model) as forwards:
        agrees(model, inputs(3) | NEW, prefill_chunk_size=3, draft_model=tiny.llama(vocab_size=96))
    assert (3, 3) in forwards.lengths


NEGATIVE = torch.randint(1, 60, (3, 4), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("negative", [None, NEGATIVE], ids=["last token", "negative prompt"])
def test_guidance(decoder, negative):
    """Sampled with a negative prompt, which plain decoding's seed has to reproduce."""
    (model, inputs), do_sample = decoder, negative is not None
    settings = NEW | {"guidance_scale": 6.0, "do_sample": do_sample, "negative_prompt_ids": negative}
    set_seed(0)
    expected = model.generate(**inputs(3), **settings)
    set_seed(0)
    unguided = model.generate(**inputs(3), **NEW | {"do_sample": do_sample})
    assert expected.tolist() != unguided.tolist(), "guidance changes something"
    agrees(model, inputs(3) | settings, draft_model=tiny.noisy_copy(model, 0.05))


def test_guidance_with_padded_negative_prompts_and_rows_that_stop():
    model = tiny.build("gpt2")
    inputs = tiny.prompts(3)
    settings = NEW | {"guidance_scale": 1.7, "negative_prompt_ids": inputs["input_ids"].flip(0)}
    settings["negative_prompt_attention_mask"] = inputs["attention_mask"].flip(0)
    plain = model.generate(**inputs, **settings)
    settings["eos_token_id"] = [plain[0, -6].item(), plain[1, -3].item()]
    assert (model.generate(**inputs, **settings)[:, 7:] == 0).any()
    agrees(model, inputs | settings, draft_model=tiny.noisy_copy(model, 0.05))


def test_token_healing():
    target, draft, tokenizer = hs.embedded_pair()
    inputs = tokenizer("for i in ran", return_tensors="pt")
    settings = {"max_new_tokens": 12, "do_sample": False, "token_healing": True, "tokenizer": tokenizer}
    expected = target.generate(**inputs, **settings)
    healed = expected[0, : inputs["input_ids"].shape[1]].tolist()
    assert healed != inputs["input_ids"][0].tolist(), "something was healed"
    assert hs.generate(target, **inputs, **settings, draft_model=draft).tolist() == expected.tolist()
    config = GenerationConfig(max_new_tokens=12, do_sample=False)
    beside = {"generation_config": config, "token_healing": True, "tokenizer": tokenizer, "draft_model": draft}
    assert hs.generate(target, **inputs, **beside).tolist() == expected.tolist()
    hs.attach(target, draft)
    assert target.generate(**inputs, **settings).tolist() == expected.tolist()
    hs.detach(target)


def test_each_copy_of_a_prompt_is_healed_for_itself():
    """By draws of its own, where the model's generation config samples."""
    target, draft, tokenizer = hs.embedded_pair()
    target.generation_config.do_sample = True
    call = dict(tokenizer(["for i in ran"], return_tensors="pt")) | {"num_return_sequences": 4, "do_sample": True}
    call |= {"token_healing": True, "tokenizer": tokenizer, "max_new_tokens": 8}
    torch.manual_seed(0)
    expected = target.generate(**call)
    torch.manual_seed(0)
    assert torch.equal(hs.generate(target, **call, draft_model=draft, reproducible=True), expected)
    with pytest.raises(ValueError, match="Greedy methods"):
        hs.generate(target, **call | {"do_sample": False}, draft_model=draft)


OPTIONS = {
    "watermark": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.5, bias=2.0)},
    "synthid": {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3)},
    "prefixes": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(int(ids[-1]) % 2 + row, 60, 2))},
    "forced eos": {"forced_eos_token_id": 5, "eos_token_id": 5, "min_new_tokens": 4},
    "banned": {"begin_suppress_tokens": [3, 4, 17], "suppress_tokens": [9, 12], "min_length": 12, "eos_token_id": 17},
    "bias": {"sequence_bias": [[[3, 5], 8.0], [[7], -4.0]], "bad_words_ids": [[11], [4, 6]]},
    "penalties": {
        "repetition_penalty": 1.4,
        "no_repeat_ngram_size": 2,
        "exponential_decay_length_penalty": (3, 1.2),
        "eos_token_id": 5,
    },
}


@pytest.mark.parametrize("do_sample", slow_but([False, True], True))
@pytest.mark.parametrize("option", OPTIONS)
def test_options_on_every_path(option, do_sample):
    for mapping, name in (("causal", "llama"), ("causal", "qwen3_next"), ("seq2seq", "bart")):
        model = build(mapping, name)
        call = prompts(mapping, model, 3) | NEW | {"do_sample": do_sample} | OPTIONS[option]
        agrees(model, call, seed=1, draft_model=tiny.noisy_copy(model))
