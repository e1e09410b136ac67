"""The universal path: transformers' own caches, for every family that the ragged one cannot hold."""

import copy

import pytest
import torch
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    GenerationConfig,
    WhisperConfig,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
)

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.hf_compat import CACHE
from hf_speculative.models import Inputs, UniversalModel, choose, probe
from hf_speculative.models.rollback import Crop, Snapshot
from hf_speculative.types import Batch
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import agrees

#: one a kind of state: encoder-decoder with relative and learned positions, local attention, convolutions, recurrences with
#: attention and without
FAMILIES = dict.fromkeys(("t5", "bart"), ("seq2seq", Crop))
FAMILIES |= dict.fromkeys(("gpt_neo", "inkling_text"), ("causal", Crop))
FAMILIES |= dict.fromkeys(("xlstm", "zaya"), ("causal", Snapshot))
#: those that take this path only where a call needs it
HYBRIDS = {"lfm2": ("causal", Crop), "mamba2": ("causal", Snapshot), "qwen3_next": ("causal", Snapshot)}
NEW = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=slow_but(FAMILIES, "t5", "gpt_neo", "xlstm", "zaya"))
def family(request, monkeypatch):
    mapping, _ = FAMILIES[request.param]
    # Encoder-decoder models, as a call that asks for attentions has them.
    monkeypatch.setattr("hf_speculative.models.choice.fits_multimodal", lambda *args: False)
    model = build(mapping, request.param)
    return model, lambda batch_size: prompts(mapping, model, batch_size)


def test_greedy_equals_plain_for_any_draft(family):
    """Drafts that partly agree, always agree, never agree; rows of unequal length, past any window."""
    model, inputs = family
    assert choose(model).name == "universal"
    for draft in (tiny.noisy_copy(model), model, tiny.noisy_copy(model, noise=3)):
        assert agrees(model, inputs(3) | NEW, draft_model=draft).num_draft_tokens > 0


def test_stops_inside_a_block(family):
    model, inputs = family
    plain = model.generate(**inputs(3), **NEW)
    eos = [plain[row, -12 + 3 * row].item() for row in range(3)]
    assert model.generate(**inputs(3), **NEW | {"eos_token_id": eos}).shape[1] < plain.shape[1]
    agrees(model, inputs(3) | NEW | {"eos_token_id": eos}, draft_model=tiny.noisy_copy(model))


def test_reproducible_sampling_equals_plain(family):
    model, inputs = family
    sampled = NEW | {"do_sample": True, "top_k": 20, "temperature": 1.3, "num_return_sequences": 3}
    agrees(model, inputs(3) | sampled, 4, draft_model=tiny.noisy_copy(model))


def test_a_model_that_drafts_for_itself_loses_no_token(family):
    """24 tokens at 5 drafts a round: one for the prompt, then 6 a pass. A bonus token lost shows nowhere else."""
    model, inputs = family
    settings = NEW | {"speculative_config": SpeculativeConfig(num_draft_tokens=5)}
    with hs.record() as stats:
        hs.generate(model, **inputs(1), **settings, draft_model=copy.deepcopy(model))
    assert stats.num_spec_steps == 4 and stats.draft_acceptance_rate == 1
    assert stats.num_target_forwards == 5, "taking the cache back costs no pass of its own when all is accepted"


@torch.no_grad()
@pytest.mark.parametrize("model_type", FAMILIES | HYBRIDS)
def test_cached_logits_equal_plain_steps_after_every_round(model_type):
    """Random accept counts a row, rows leaving, and once further back than any round goes."""
    mapping, way_back = (FAMILIES | HYBRIDS)[model_type]
    model = build(mapping, model_type)
    prepared = []

    def capture(model, input_ids, generation_config, logits_processor, stopping_criteria, **kwargs):
        prepared.append(Inputs(input_ids, generation_config, kwargs))

    model.generate(**prompts(mapping, model, 3), max_new_tokens=60, custom_generate=capture)
    ids = prepared[0].input_ids
    batch, cached = Batch(ids, [0] * 3, ids.shape[1] + 60), UniversalModel(model, prepared[0])
    fresh = UniversalModel(model, prepared[0])
    generator = torch.Generator().manual_seed(0)
    cached.logits(batch, 0, 1)
    assert type(cached.rewinder) is way_back
    for round in range(7):
        k = int(torch.randint(0, 5, (1,), generator=generator))
        proposal = torch.randint(1, 50, (len(batch.rows), k), generator=generator)
        batch.put(proposal)
        found = cached.logits(batch, ahead=k, num_last=k + 1)
        for row, length in enumerate(batch.host_lengths):
            fresh.reset()
            fresh.ids[:, : ids.shape[1]] = ids
            fresh.rows, alone = [batch.rows[row]], copy.copy(batch)
            alone.tokens, alone.host_lengths, alone.rows = batch.tokens[row : row + 1], [length], [batch.rows[row]]
            expected = fresh.logits(alone, ahead=k, num_last=k + 1)
            torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-3, atol=1e-3)
        accepted = torch.randint(0, k + 1, (len(batch.rows),), generator=generator)
        next_token = torch.randint(1, 50, (len(batch.rows),), generator=generator)
        draft = hs.Draft(proposal, None, torch.full_like(batch.lengths, k))
        batch.append(draft, hs.Verdict(accepted, next_token))
        cached.rollback(batch)
        if round == 3:
            for part in (batch, cached):
                part.select([0, 2])
        if round == 5:  # further back than any round goes
            batch.lengths = torch.full_like(batch.lengths, ids.shape[1] + 1)
            batch.host_lengths = [ids.shape[1] + 1] * 2
            cached.rollback(batch)


@pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")  # Mllama's own, in older transformers
def test_an_image_as_long_as_the_text_is_not_cut():
    """Its keys lie in the text's cache, and then nothing but the config tells them apart."""
    model = build("image-text", "mllama")
    inputs = prompts("image-text", model, 1)
    width = model.generate(**inputs, **NEW, return_dict_in_generate=True).past_key_values.layers[1].get_seq_length()
    text = tiny.prompts(1, width=width, vocab_size=60)
    inputs |= text | {"cross_attention_mask": inputs["cross_attention_mask"][:, :1].expand(-1, width, -1, -1)}
    agrees(model, inputs | NEW, draft_model=tiny.noisy_copy(model))


def test_a_wrong_cache_is_found_out(monkeypatch):
    """The probe's negative control: a model whose passes over several tokens forget the cache is refused, by name."""
    model = build("causal", "gpt_neo")
    original = model.forward

    def forgetful(*args, input_ids=None, attention_mask=None, **kwargs):
        if kwargs[CACHE].get_seq_length() and input_ids.shape[1] > 1:
            attention_mask = torch.cat([torch.zeros_like(attention_mask[:, :3]), attention_mask[:, 3:]], 1)
        return original(*args, input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(model, "forward", forgetful)
    monkeypatch.setattr(probe, "is_tested_universal", lambda model, by_type: False)
    inputs, draft = prompts("causal", model, 2), tiny.llama(vocab_size=99)
    with pytest.raises(ValueError, match=r"GPTNeoForCausalLM computes different logits.*draft_model=None"):
        hs.generate(model, **inputs, **NEW, draft_model=draft)
    monkeypatch.setattr(probe, "_deviation_from_steps", lambda *args: pytest.fail("asked twice"))
    with pytest.raises(ValueError, match="computes different logits"):
        hs.generate(model, **inputs, **NEW, draft_model=draft)


@pytest.mark.parametrize("model_type", ["t5", "bart", "led"])
def test_a_mask_that_hides_some_of_the_decoders_prompt(model_type):
    """LED's steps of one token do not look at it, passes over several tokens do: tried out, although the type is tested."""
    model = build("seq2seq", model_type)
    draft, inputs = tiny.noisy_copy(model), prompts("seq2seq", model, 2)
    decoder = tiny.prompts(2, width=6, vocab_size=60)
    inputs |= {"decoder_input_ids": decoder["input_ids"], "decoder_attention_mask": decoder["attention_mask"]}
    if model_type != "led":
        agrees(model, inputs | NEW, draft_model=draft)
        return
    refusal = r"`model`: LEDFor.*under a `decoder_attention_mask` that hides.*leave the mask out"
    for _ in range(2):
        with pytest.raises(ValueError, match=refusal):
            hs.generate(model, **inputs, **NEW, draft_model=draft)
    shown = {"decoder_attention_mask": torch.ones_like(decoder["attention_mask"])}
    agrees(model, inputs | NEW | shown, draft_model=draft)


def csm():
    """Speech, four codebooks a step: the first by the model itself, the others by its depth decoder."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "num_codebooks": 4, "vocab_size": 60, "codebook_pad_token_id": 59}
    codec = {"hidden_size": 32, "num_filters": 8, "upsampling_ratios": [8, 4], "upsample_groups": 32}
    codec |= {"model_type": "mimi", "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    depth = sizes | {"backbone_hidden_size": 32, "pad_token_id": 59}
    ids = {"audio_token_id": 98, "audio_eos_token_id": 97, "bos_token_id": 96, "pad_token_id": 95, "eos_token_id": None}
    config = CsmConfig(**sizes, **ids, text_vocab_size=99, depth_decoder_config=depth, codec_config=codec)
    return CsmForConditionalGeneration(config).eval()


def test_what_no_cache_fits_is_refused_before_any_forward():
    """A recurrence that forgets its state; speech of several codebooks, by a loop and by a decoder of their own."""
    rwkv, speech = build("causal", "rwkv"), csm()
    backbone = {"input_ids": torch.randint(3, 57, (1, 6))}
    depth = {"input_ids": torch.tensor([[0, 5]]), "backbone_last_hidden_state": torch.randn(1, 32)}
    for model, inputs, reason in (
        (rwkv, prompts("causal", rwkv, 2), "recurrent state"),
        (speech, backbone, "a loop of its own"),
        (speech.depth_decoder, depth, "an output layer for each position"),
    ):
        call, name = {"max_new_tokens": 3, "do_sample": False}, type(model).__name__
        assert len(model.generate(**inputs, **call)), "plain decoding takes it"
        with tiny.CountForwards(model) as forwards:
            for source in ({"prompt_lookup_num_tokens": 2}, {"draft_model": model}, {"draft_model": tiny.llama()}):
                with pytest.raises(ValueError, match=rf"`model`: {name} .*{reason}.*draft_model=None"):
                    hs.generate(model, **inputs, **call, **source)
            with pytest.raises(ValueError, match=rf"`draft_model`: {name} .*{reason}.*use another draft"):
                hs.generate(tiny.llama(), **tiny.prompts(1), **call, draft_model=model)
        assert forwards.lengths == []


def test_a_draft_with_a_shorter_context_falls_back_to_plain():
    target, draft = build("seq2seq", "bart"), build("seq2seq", "bart")
    draft.config.max_position_embeddings = 12  # Whisper's config calls it max_target_positions
    stats = agrees(target, prompts("seq2seq", target, 2) | NEW, draft_model=draft)
    assert stats.num_draft_tokens > 0 and stats.draft_acceptance_rate == 1 and stats.num_target_forwards > 12


@pytest.mark.slow
@pytest.mark.parametrize(("mapping", "name"), [("seq2seq", "bart"), ("causal", "gpt2")])
def test_up_to_the_last_position(mapping, name):
    """A row near the end is fed along while others draft further: there is no position beyond the table."""
    model = build(mapping, name)
    inputs, config = prompts(mapping, model, 3), model.config
    positions = getattr(config, "max_position_embeddings", None) or config.n_positions
    settings = {"max_length": positions, "do_sample": False, "pad_token_id": 0}
    settings |= {"return_dict_in_generate": True, "output_hidden_states": True}  # the universal path, for gpt2 as well
    expected = model.generate(**inputs, **settings).sequences
    found = hs.generate(model, **inputs, **settings, draft_model=tiny.noisy_copy(model))
    assert found.sequences.tolist() == expected.tolist()


def test_a_decoder_prompt_near_the_last_position():
    """Trying the cache must not run past the table, nor call a model unfit that then fits for ever."""
    model = build("seq2seq", "bart")
    positions = model.config.max_position_embeddings
    inputs = prompts("seq2seq", model, 1)
    ids = torch.randint(3, 60, (1, positions - 3), generator=torch.Generator().manual_seed(0))
    ids[0, 0] = model.generation_config.decoder_start_token_id
    agrees(model, inputs | {"decoder_input_ids": ids, "max_length": positions, "do_sample": False}, draft_model=model)


def test_what_the_drafts_own_generation_config_asks_for():
    """Beams and stop strings of a checkpoint's are not the call's."""
    model = build("seq2seq", "bart")
    draft = tiny.noisy_copy(model)
    draft.generation_config.num_beams, draft.generation_config.stop_strings = 4, ["x"]
    before = draft.generation_config.to_dict()
    agrees(model, prompts("seq2seq", model, 3) | NEW, draft_model=draft)
    assert draft.generation_config.to_dict() == before


def whisper(decoder_layers=2):
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": decoder_layers, "num_mel_bins": 8, "vocab_size": 61}
    sizes |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    sizes |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 30, "max_target_positions": 64}
    ids = {"decoder_start_token_id": 1, "eos_token_id": 60, "pad_token_id": 0, "bos_token_id": 1}
    none = {"suppress_tokens": None, "begin_suppress_tokens": None, "tie_word_embeddings": False}
    torch.manual_seed(0)
    model = tiny._spread(WhisperForConditionalGeneration(WhisperConfig(**sizes, **ids, **none)).eval())
    model.generation_config = GenerationConfig(**ids, max_length=64)
    model.generation_config.is_multilingual, model.generation_config.no_timestamps_token_id = False, 59
    return model


FEATURES = {"input_features": torch.randn(3, 8, 60, generator=torch.Generator().manual_seed(0))}


def decoder_only(model):
    """As distil-whisper is published: a decoder that reads the target's encoder."""
    draft = WhisperForCausalLM(copy.deepcopy(model.config)).eval()
    noisy = tiny.noisy_copy(model, noise=0.05)
    draft.model.decoder.load_state_dict(noisy.model.decoder.state_dict())
    draft.proj_out.load_state_dict(noisy.proj_out.state_dict())
    return draft


@pytest.mark.parametrize("kind", ["copy", "smaller", "decoder only"])
def test_whisper(kind):
    model = whisper()
    draft = {"copy": tiny.noisy_copy(model, 0.05), "smaller": whisper(1), "decoder only": decoder_only(model)}[kind]
    settings = {"max_new_tokens": 20, "eos_token_id": None, "suppress_tokens": [60]}
    stats = agrees(model, FEATURES | settings, draft_model=draft)
    assert stats.num_draft_tokens > 0 and (kind == "smaller" or stats.draft_acceptance_rate > 0.3)


def test_a_shared_encoder_runs_once():
    model = whisper()
    draft = tiny.noisy_copy(model, noise=0.05)
    draft.model.encoder = model.model.encoder
    runs = []
    hook = model.model.encoder.register_forward_hook(lambda *args: runs.append(1))
    hs.attach(model, draft)
    settings = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True}
    out = model.generate(**FEATURES, **settings)
    hook.remove()
    hs.detach(model)
    plain = model.generate(**FEATURES, **settings)
    assert len(runs) == 1 and out.sequences.tolist() == plain.sequences.tolist()


@pytest.mark.parametrize("model_type", ["gpt_neo", "t5"])
def test_a_static_cache_is_taken_as_one_that_can_be_taken_back(model_type):
    mapping, _ = FAMILIES[model_type]
    model = build(mapping, model_type)
    settings = {"cache_implementation": "static", "draft_model": tiny.noisy_copy(model)}
    agrees(model, prompts(mapping, model, 2) | NEW, **settings)
