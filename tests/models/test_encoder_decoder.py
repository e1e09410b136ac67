"""Decoders of encoders, and those that count positions themselves, on the ragged path: rows have their own lengths."""

import copy
import functools

import accelerate
import pytest
import torch
from transformers import WhisperForCausalLM

import hf_speculative as hs
from hf_speculative.models import Inputs, choose, choose_for, max_positions_of, prepared_inputs
from hf_speculative.models.encoder_decoder import EncoderDecoderModel
from hf_speculative.models.execution import uncompilable_reason
from hf_speculative.types import Batch
from tests.architectures.check import build
from tests.architectures.inputs import prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import agrees, takes_lanes

#: positions from the cache's length, and beside padding; biases; positions that are given; an encoder of another type
TYPES = ("bart", "m2m_100", "t5", "t5gemma", "encoder-decoder", "whisper")
GREEDY = {"max_new_tokens": 20, "do_sample": False}


def mapping_of(name):
    return "speech" if name == "whisper" else "seq2seq"


@pytest.fixture(scope="module")
def models():
    return {name: build(mapping_of(name), name) for name in TYPES}


@pytest.fixture(params=slow_but(TYPES, "bart", "t5", "whisper"))
def case(request, models):
    return models[request.param], prompts(mapping_of(request.param), models[request.param], 3)


def drafts(target):
    return {"noisy": tiny.noisy_copy(target, 0.1), "copy": tiny.noisy_copy(target, 0.0), "auto": "auto"}


@pytest.mark.parametrize("draft", ["noisy", "copy", "auto"])
def test_greedy_rows(case, draft):
    target, call = case
    assert choose_for(target, prepared_inputs(target, call)).name == "ragged"
    stats = agrees(target, call | GREEDY, draft_model=drafts(target)[draft], num_draft_tokens=4)
    assert draft == "auto" or stats.num_accepted_draft_tokens > 0
    if draft == "copy":
        assert stats.draft_acceptance_rate == 1, "it has read what the encoder gave"


def test_sampled_rows_and_several_sequences(case):
    target, call = case
    several = {"max_new_tokens": 16, "do_sample": True, "num_return_sequences": 2}
    stats = agrees(target, call | several, draft_model=drafts(target)["noisy"], num_draft_tokens=3)
    assert stats.num_accepted_draft_tokens > 0
    output = hs.generate(target, **call, **several, draft_model="auto", return_dict_in_generate=True)
    assert output.past_key_values.get_seq_length() == output.sequences.shape[1] - 1


def test_rows_that_end_leave_and_the_cache_is_as_plain_leaves_it(case):
    target, call = case
    ends = target.generate(**call, **GREEDY)[:, -9:-6].flatten().tolist()
    call |= GREEDY | {"eos_token_id": ends, "return_dict_in_generate": True}
    plain = target.generate(**call)
    found = hs.generate(target, **call, draft_model=drafts(target)["noisy"], num_draft_tokens=4)
    assert found.sequences.tolist() == plain.sequences.tolist()
    for kind in ("self_attention_cache", "cross_attention_cache"):
        pairs = zip(*(getattr(output.past_key_values, kind).layers for output in (found, plain)), strict=True)
        for ours, theirs in pairs:
            assert ours.keys.shape == theirs.keys.shape
            torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", slow_but(TYPES, "bart", "whisper"))
def test_prompts_for_the_decoder_with_padding(models, name):
    target = models[name]
    start, call = target.generation_config.decoder_start_token_id, prompts(mapping_of(name), models[name], 3) | GREEDY
    for rows in ([[0, 0, start, 9], [0, start, 6, 8], [start, 11, 12, 13]], [[0, 0, start, 9], [0, start, 6, 8]] * 2):
        ids = torch.tensor(rows[:3])
        call |= {"decoder_input_ids": ids, "decoder_attention_mask": (ids != 0).long()}
        assert agrees(target, call, draft_model=drafts(target)["copy"]).draft_acceptance_rate > 0.6


def test_a_decoder_alone_drafts_from_the_target_s_encoder(models):
    target = models["whisper"]
    draft = WhisperForCausalLM(copy.deepcopy(target.config)).eval()  # which writes to it
    draft.model.decoder.load_state_dict(target.model.decoder.state_dict())
    draft.proj_out.weight = target.proj_out.weight
    start, call = target.generation_config.decoder_start_token_id, prompts("speech", target, 3) | GREEDY
    stats = agrees(target, call, draft_model=draft, num_draft_tokens=4)
    assert stats.draft_acceptance_rate == 1
    ids = torch.tensor([[0, 0, start, 9], [0, start, 6, 8], [0, start, 6, 9]])
    agrees(target, call | {"decoder_input_ids": ids, "decoder_attention_mask": (ids != 0).long()}, draft_model=draft)


def test_trees(models):
    target = models["whisper"]
    stats = agrees(
        target,
        prompts("speech", target, 3) | GREEDY,
        draft_model=drafts(target)["noisy"],
        tree_top_k=3,
        num_draft_tokens=8,
    )
    assert stats.num_accepted_draft_tokens > 0


@torch.no_grad()
@pytest.mark.parametrize("name", ["m2m_100", "nllb-moe"])
def test_pad_tokens_in_the_text_have_no_position(models, name):
    """A token that looks like padding is read as in a step of one token, beside others."""
    target = models.get(name) or build("seq2seq", name)
    inputs = prepared_inputs(target, prompts("seq2seq", target, 2))
    pad = target.config.pad_token_id
    ids = torch.tensor([[7, pad, 9, 11], [5, 6, pad, 8]])
    prompt = Inputs(inputs.input_ids[:, :1], inputs.generation_config, inputs.model_kwargs)
    at_once, stepped = EncoderDecoderModel(target, prompt), EncoderDecoderModel(target, prompt)
    batch = Batch(prompt.input_ids, [0, 0], 16)
    at_once.logits(batch, ahead=0, num_last=1)
    batch.put(ids)
    found = at_once.logits(batch, ahead=4, num_last=4)
    steps = [stepped.logits(batch, ahead=ahead, num_last=1) for ahead in range(5)]
    torch.testing.assert_close(found, torch.cat(steps[1:], 1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["bart", "bloom", "mpt", "trocr"])
def test_decoders_that_count_their_positions(name):
    """Left padding counts in BART's positions; the rows of a batch part by what is accepted."""
    target = build("causal", name)
    assert choose(target).name == "ragged"
    call = prompts("causal", target, 3) | GREEDY
    for draft in drafts(target).values():
        agrees(target, call, draft_model=draft, num_draft_tokens=4)


@pytest.mark.parametrize("mapping_and_type", slow_but(["seq2seq bart", "causal bart", "causal mpt"], "causal mpt"))
def test_up_to_the_last_position(mapping_and_type):
    """Rows that are ahead draft beyond it."""
    mapping, name = mapping_and_type.split()
    target = build(mapping, name)
    longest = max_positions_of(target) or target.config.max_seq_len
    call = prompts(mapping, target, 3) | {"max_length": longest, "do_sample": False}
    agrees(target, call, draft_model=drafts(target)["noisy"], num_draft_tokens=8)


@pytest.mark.parametrize("name", ["bart", "bloom"])
def test_rows_of_batches_are_as_each_alone(name):
    target = build("causal", name)
    takes_lanes(target, tiny.texts(7), {"eos_token_id": list(range(3, 60, 7))}, draft_model=drafts(target)["noisy"])


def test_a_padded_cache_that_goes_on():
    target = build("causal", "bart")
    call = prompts("causal", target, 3)
    first = target.generate(**call, max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    mask = torch.nn.functional.pad(call["attention_mask"], (0, 4), value=1)

    def go_on():
        return {
            "input_ids": first.sequences,
            "attention_mask": mask,
            "past_key_values": copy.deepcopy(first.past_key_values),
        }

    expected = target.generate(**go_on(), **GREEDY)
    assert hs.generate(target, **go_on(), **GREEDY, draft_model="auto").tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_modules_that_a_copy_would_not_run(name):
    target = build("seq2seq", name)
    call, draft, forward = prompts("seq2seq", target, 3) | GREEDY, drafts(target)["noisy"], target.forward
    target.forward = functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))
    assert choose_for(target, prepared_inputs(target, prompts("seq2seq", target, 3))).name == "universal"
    agrees(target, call, draft_model=draft, num_draft_tokens=4)


@pytest.mark.filterwarnings("ignore:You are calling .generate:UserWarning")  # transformers 5.17 takes it to be on "meta"
def test_an_offloaded_table_of_positions(models):
    target, call = build("seq2seq", "bart"), prompts("seq2seq", models["bart"], 3) | GREEDY
    draft = drafts(target)["noisy"]
    agrees(accelerate.cpu_offload(target), call, draft_model=draft, num_draft_tokens=4)


def test_check_names_the_path(models):
    assert hs.check(models["t5"], tiny.noisy_copy(models["t5"], 0.1)).target.path == "ragged"
    assert "encoder" in uncompilable_reason(models["t5"])
