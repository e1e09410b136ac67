"""Decoders of encoders, and those that count positions themselves, on the ragged path: rows have their own lengths."""

import copy
import functools

import accelerate
import pytest
import torch
from transformers import WhisperForCausalLM

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.models import Inputs, artifacts, choose, choose_for, max_positions_of, pool, prepared_inputs, replays
from hf_speculative.models.exported import BoundPass, PassOfPieces
from hf_speculative.models.multimodal import EncoderDecoderModel
from hf_speculative.types import Batch
from tests.architectures.check import build
from tests.architectures.inputs import prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.fake_graphs import Recorded
from tests.support.plain import agrees, takes_lanes

#: positions from the cache's length, and beside padding; biases; positions that are given; an encoder of another type
TYPES = ("bart", "m2m_100", "t5", "t5gemma", "encoder-decoder", "whisper")
GREEDY = {"max_new_tokens": 20, "do_sample": False}
OPTIMIZED = as_keywords({"optimize": True})


def mapping_of(name):
    return "speech" if name == "whisper" else "seq2seq"


@pytest.fixture(scope="module")
def models():
    return {name: build(mapping_of(name), name) for name in TYPES}


@pytest.fixture(params=slow_but(TYPES, "bart", "t5", "whisper"))
def case(request, models):
    return models[request.param], prompts(mapping_of(request.param), models[request.param], 3)


def unequal_end(sequences):
    """A token that ends the rows of 20 new tokens at places far apart."""
    rows = sequences[:, -20:].tolist()
    places = {token: [(*row, token).index(token) for row in rows] for row in rows for token in row}
    return max(places, key=lambda token: max(places[token]) - min(places[token]))


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


def test_check_names_the_path(models, emulated):
    report = hs.check(models["t5"], tiny.noisy_copy(models["t5"], 0.1)).target
    assert report.path == "ragged" and "eager until they are compiled" in report.passes


class TestCaptured:
    @pytest.fixture
    def recorded(self, monkeypatch):
        capture = Recorded()
        pool._kept.clear()
        monkeypatch.setattr(replays, "NUM_EAGER", 0)
        monkeypatch.setattr("hf_speculative.models.execution.capture_of", lambda *_: capture)
        return capture

    def test_rows_of_calls_whose_encoders_read_more_and_less(self, case, recorded):
        """The graphs of a call are replayed in later ones, over what these encoders gave."""
        target, call = case
        draft = drafts(target)["noisy"]
        for seed in (0, 1):
            call = prompts(mapping_of(target.config.model_type), target, 3, seed)
            agrees(target, call | GREEDY, draft_model=draft, num_draft_tokens=4)
        num_captures = recorded.num_captures
        agrees(target, call | GREEDY, draft_model=draft, num_draft_tokens=4)
        assert recorded.num_captures == num_captures and recorded.num_replays > num_captures > 0
        for width in (9, 5):
            if "input_features" not in call:
                call = {name: rows.repeat(1, 2)[:, :width] for name, rows in call.items()}
            agrees(target, call | GREEDY, draft_model=draft, num_draft_tokens=4)

    @pytest.mark.parametrize("name", ["bart", "t5"])
    def test_rows_that_leave(self, name, models, recorded):
        target, call = models[name], prompts("seq2seq", models[name], 3)
        call |= GREEDY | {"eos_token_id": unequal_end(target.generate(**call, **GREEDY))}
        agrees(target, call, draft_model=drafts(target)["noisy"], num_draft_tokens=2)
        assert recorded.num_replays > 0


class TestCompiled:
    """Passes of a file take what the encoder gave as tensors, and positions from the columns."""

    def test_rows(self, case, emulated):
        target, call = case
        stats = agrees(target, call | GREEDY, draft_model=drafts(target)["noisy"], num_draft_tokens=4, optimize=True)
        assert emulated.num_made == 1 and len(emulated.runs) == stats.num_target_forwards + stats.num_draft_forwards - 2
        assert (3, 5) in emulated.runs, "all passes but the two that read prompts"

    def test_layers_share_a_file_where_they_are_alike(self, models, emulated):
        for name, num_files in (("bart", 3), ("t5", 1)):  # T5's first layer makes a bias for the others
            emulated.num_files = 0
            hs.generate(models[name], **prompts("seq2seq", models[name], 1), **GREEDY, draft_model="auto", **OPTIMIZED)
            assert emulated.num_files == num_files

    @pytest.mark.parametrize("name", ["bart", "t5"])
    def test_rows_that_leave(self, name, models, emulated):
        target, call = models[name], prompts("seq2seq", models[name], 3)
        call |= GREEDY | {"eos_token_id": unequal_end(target.generate(**call, **GREEDY))}
        agrees(target, call, draft_model=drafts(target)["noisy"], optimize=True)
        assert min(rows for rows, _ in emulated.runs) < 3, "of what the encoder gave, too, those that run are left"

    def test_plain_calls_of_an_attached_model(self, models, emulated):
        target, call = models["bart"], prompts("seq2seq", models["bart"], 3) | GREEDY
        expected = target.generate(**call)
        target = copy.deepcopy(target)
        hs.attach(target, optimize=True)
        assert target.generate(**call, draft_model=None).tolist() == expected.tolist()
        assert emulated.runs

    @pytest.mark.parametrize("name", ["bart", "bloom", "mpt"])
    def test_decoders_that_count_their_positions(self, name, emulated):
        target = build("causal", name)
        call = prompts("causal", target, 3) | GREEDY
        for draft in drafts(target).values():
            emulated.runs.clear()
            agrees(target, call, draft_model=draft, num_draft_tokens=4, optimize=True)
            assert (3, 1) in emulated.runs or (3, 5) in emulated.runs

    def test_what_the_encoder_is_not_alone_in_giving(self, models, emulated):
        """A mask over what the encoder reads says nothing of what it gives: such passes run eagerly."""
        target = models["whisper"]
        call = prompts("speech", target, 3)
        call |= {"attention_mask": torch.ones(3, call["input_features"].shape[-1], dtype=torch.long)} | GREEDY
        agrees(target, call, draft_model=drafts(target)["noisy"], optimize=True)
        assert not emulated.runs

    def test_texts_longer_than_the_table_of_positions(self, emulated):
        """M2M100 makes a longer one."""
        target = build("seq2seq", "m2m_100")
        longest = target.config.max_position_embeddings = 16
        call = prompts("seq2seq", target, 3) | {"max_new_tokens": longest - 2, "do_sample": False}
        agrees(target, call, draft_model=drafts(target)["noisy"], optimize=True)
        assert emulated.runs
        emulated.runs.clear()
        agrees(target, call | {"max_new_tokens": longest + 8}, draft_model=drafts(target)["noisy"], optimize=True)
        assert not emulated.runs

    @pytest.mark.slow
    @pytest.mark.parametrize("mapping_and_type", ["seq2seq bart", "seq2seq t5", "speech whisper", "causal bloom"])
    def test_by_the_compiler(self, mapping_and_type, folder):
        mapping, name = mapping_and_type.split()
        target = build(mapping, name)
        artifacts.make(target)
        assert isinstance(artifacts.find(target), BoundPass if name == "t5" else PassOfPieces)
        agrees(target, prompts(mapping, target, 3) | GREEDY, draft_model=drafts(target)["noisy"], optimize=True)
