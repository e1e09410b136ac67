"""`reproducible="bitwise"`: the same bits with any draft, any draft length and without one, in any number format."""

import itertools
from unittest import mock

import pytest
import torch
from torch import nn
from transformers import DynamicCache, set_seed

import hf_speculative as hs
from hf_speculative.models import FixedShape, choose, native
from hf_speculative.types import Costs
from tests.architectures.check import build as built_type, types_of
from tests.support import heads, tiny
from tests.support.cases import STRIDE, slow_but
from tests.support.execution import fix_costs, run_as
from tests.support.fake_graphs import Recorded
from tests.support.plain import Collect
from tests.support.served import PATIENCE, running, submit

GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
SAMPLED = GREEDY | {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}
HALF = (torch.bfloat16, torch.float16)
#: a row ends in the middle of a draft
ENDS = {"eos_token_id": [7, 19, 23, 31, 40]}


def pair(dtype, kind="llama"):
    target = tiny.build(kind, seed=1)
    return target.to(dtype), tiny.noisy_copy(target, 0.1).to(dtype)


def bits(model, inputs, settings=GREEDY, seed=0, lanes=None, optimize=None, tree_top_k=None, **draft):
    set_seed(seed)
    config = hs.SpeculativeConfig(lanes=lanes, optimize=optimize, tree_top_k=tree_top_k)
    call = settings | {"return_dict_in_generate": True, "output_scores": True, "speculative_config": config}
    output = hs.generate(model, **inputs, **call, reproducible="bitwise", **draft)
    return output.sequences, torch.stack(output.scores), output


def are_same(a, b):
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def gives_the_bits_of_none(target, inputs, settings, drafts):
    expected = bits(target, inputs, settings, draft_model=None)
    for more in drafts:
        found = bits(target, inputs, settings, **more)
        assert are_same(found, expected), more
    assert found[2].statistics.num_accepted_draft_tokens  # else nothing was compared


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, GREEDY | ENDS], ids=["greedy", "sampled", "ends"])
@pytest.mark.parametrize("batch_size", slow_but([1, 3], 3))
def test_any_draft_gives_the_bits_of_none(dtype, settings, batch_size):
    target, draft = pair(dtype)
    drafts = [{"draft_model": draft, "num_draft_tokens": n} for n in (1, 4, 12)]
    drafts += [{"draft_model": draft}, {"draft_model": "auto"}, {"draft_model": ["suffix", draft]}]
    gives_the_bits_of_none(target, tiny.prompts(batch_size), settings, drafts)


@pytest.mark.parametrize("dtype", slow_but(HALF, torch.bfloat16), ids=str)
def test_passes_shaped_as_they_come_give_other_bits(dtype):
    """Else the tests here could not fail."""
    target, draft = (model.to(dtype) for model in hs.embedded_pair()[:2])
    inputs, scores = {"input_ids": torch.arange(40, 140)[None]}, []
    for more in ({"draft_model": None}, {"draft_model": target, "num_draft_tokens": 4}):
        call = GREEDY | {"return_dict_in_generate": True, "output_scores": True}
        scores.append(torch.stack(hs.generate(target, **inputs, **call, **more).scores))
    assert not torch.equal(*scores)
    assert are_same(bits(target, inputs, draft_model=None), bits(target, inputs, draft_model=draft))


def test_the_same_bits_in_any_lane_beside_any_rows():
    target, draft = pair(torch.bfloat16)
    inputs, order = tiny.prompts(4), [2, 0, 3, 1]
    tokens, scores, _ = bits(target, inputs, draft_model=draft)
    others = {name: values[order] for name, values in inputs.items()}
    found, found_scores, _ = bits(target, others, draft_model="suffix")
    assert torch.equal(found, tokens[order]) and torch.equal(found_scores, scores[:, order])
    for row in range(4):
        alone = tiny.unpadded(inputs, row)
        found, found_scores, _ = bits(target, alone, lanes=4, draft_model=draft)
        assert torch.equal(found[0, alone["input_ids"].shape[1] :], tokens[row, inputs["input_ids"].shape[1] :])
        assert torch.equal(found_scores[:, 0], scores[:, row])


def test_rows_that_take_the_place_of_others_are_what_they_are_alone():
    target, draft = pair(torch.bfloat16)
    settings, texts = GREEDY | ENDS, tiny.texts(7)
    call = {"reproducible": "bitwise", "draft_model": draft}
    for text, row in zip(texts, hs.generate_batches(target, texts, batch_size=3, **call, **settings), strict=True):
        alone = bits(target, {"input_ids": torch.tensor([text])}, settings, lanes=3, draft_model=None)[0]
        assert row.new_ids == alone[0, len(text) :].tolist()


@pytest.mark.parametrize("kind", ["draft", "auto", None])
def test_requests_of_a_server_are_what_they_are_alone(kind, monkeypatch):
    """In half precision, beside others, whenever they come."""
    fix_costs(monkeypatch, Costs(0.01, 0.01))  # by the clock of a busy machine few guesses pay
    target, draft = pair(torch.bfloat16)
    requests = [(text, SAMPLED if i % 2 else GREEDY | ENDS) for i, text in enumerate(tiny.texts(9))]
    call = {"reproducible": "bitwise", "draft_model": draft if kind == "draft" else kind}
    with running(target, max_lanes=3, **call) as engine:
        answers = []
        for seed, (text, settings) in enumerate(requests):
            answers.append(submit(engine, text, seed, **settings))
            if seed % 4 == 0:
                answers[-1].has_begun.wait(PATIENCE)
        for seed, (answer, (text, settings)) in enumerate(zip(answers, requests, strict=True)):
            alone = bits(target, {"input_ids": torch.tensor([text])}, settings, seed, lanes=3, draft_model=None)[0]
            assert answer.wait() == alone[0, len(text) :].tolist()
        assert bool(engine.statistics.num_accepted_draft_tokens) == (kind is not None)


def test_copies_of_a_prompt_and_a_stream():
    target, draft = pair(torch.bfloat16)
    settings, inputs = SAMPLED | {"num_return_sequences": 3}, tiny.prompts(2)
    assert are_same(bits(target, inputs, settings, draft_model=draft), bits(target, inputs, settings, draft_model=None))
    for model in (draft, None):
        stream = Collect()
        tokens, *_ = bits(target, tiny.prompts(1), streamer=stream, draft_model=model)
        assert torch.cat([piece.flatten() for piece in stream.pieces]).tolist() == tokens[0].tolist() and stream.ended


def test_attached_and_plain():
    target, draft = pair(torch.bfloat16)
    hs.attach(target, draft, reproducible="bitwise", optimize=False)
    inputs = tiny.prompts(2)
    found = target.generate(**inputs, **GREEDY)
    assert found.tolist() == target.generate(**inputs, **GREEDY, draft_model=None).tolist()
    assert found.tolist() == bits(target, inputs, draft_model=None)[0].tolist()


@pytest.mark.skipif(not native.has_kernel(), reason="the kernels cannot be built on this machine")
class TestByOurKernels:
    """Passes run as they come, trees included."""

    @pytest.fixture(autouse=True)
    def has_no_fixed_shape(self, monkeypatch):
        run_as(monkeypatch, has_kernel=True)
        monkeypatch.setattr("hf_speculative.call.parts.FixedShape", lambda *args: pytest.fail("passes of one shape"))

    @staticmethod
    def attached(dtype, kind="llama"):
        target = tiny.build(kind, seed=1, head_dim=16)
        draft = tiny.noisy_copy(target, 0.1).to(dtype)
        return hs.attach(target.to(dtype), draft), draft

    @pytest.mark.parametrize("dtype", slow_but(native.DTYPES, torch.float32), ids=str)
    @pytest.mark.parametrize("kind", slow_but(["llama", "gemma3_text"], "gemma3_text"))  # which has windows
    @pytest.mark.parametrize("settings", slow_but([GREEDY, SAMPLED], GREEDY, every=True), ids=["greedy", "sampled"])
    def test_any_draft_gives_the_bits_of_none(self, dtype, kind, settings):
        target, draft = self.attached(dtype, kind)
        for batch_size in (1, 3):
            drafts = [{"num_draft_tokens": n} for n in (1, 4, 12)] + [{}, {"draft_model": "auto"}]
            drafts += [{"draft_model": ["suffix", draft]}, {"num_draft_tokens": 6, "tree_top_k": 3}]
            gives_the_bits_of_none(target, tiny.prompts(batch_size, width=21), settings, drafts)

    def test_drafts_may_be_longer_than_in_passes_of_one_shape(self):
        target, inputs = self.attached(torch.bfloat16)[0], tiny.prompts(1)
        found = bits(target, inputs, draft_model=target, num_draft_tokens=15)
        assert are_same(found, bits(target, inputs, draft_model=None))
        assert found[2].statistics.num_rounds == 3  # of 1, 16 and 3 tokens

    def test_the_same_bits_beside_any_rows(self):
        """And as many of them."""
        target, draft = self.attached(torch.bfloat16)
        inputs = tiny.prompts(4)
        tokens, scores, _ = bits(target, inputs, draft_model=draft)
        for row in range(4):
            alone = tiny.unpadded(inputs, row)
            found, found_scores, _ = bits(target, alone, draft_model="suffix")
            assert torch.equal(found[0, alone["input_ids"].shape[1] :], tokens[row, inputs["input_ids"].shape[1] :])
            assert torch.equal(found_scores[:, 0], scores[:, row])

    def test_rows_that_take_the_place_of_others_and_requests(self):
        target, draft = self.attached(torch.bfloat16)
        settings, texts = GREEDY | ENDS, tiny.texts(7)
        alone = [bits(target, {"input_ids": torch.tensor([text])}, settings, draft_model=None)[0] for text in texts]
        expected = [row[0, len(text) :].tolist() for row, text in zip(alone, texts, strict=True)]
        call = {"reproducible": "bitwise", "draft_model": draft}
        assert [row.new_ids for row in hs.generate_batches(target, texts, batch_size=3, **call, **settings)] == expected
        with running(target, max_lanes=3, **call) as engine:
            answers = [submit(engine, text, **settings) for text in texts]
            assert [answer.wait() for answer in answers] == expected

    def test_a_head(self):
        target = self.attached(torch.bfloat16)[0]
        head = heads.eagle3(target).to(torch.bfloat16)
        inputs = tiny.prompts(3)
        expected = bits(target, inputs, draft_model=None)
        for settings in ({}, {"num_draft_tokens": 6, "tree_top_k": 3}):
            assert are_same(bits(target, inputs, draft_model=head, **settings), expected)


def test_passes_of_many_rows_have_one_shape(monkeypatch):
    """Torch multiplies in them, in another order for each number of rows."""
    run_as(monkeypatch, has_kernel=True)
    target, draft = pair(torch.bfloat16)
    made = mock.Mock(wraps=FixedShape)
    monkeypatch.setattr("hf_speculative.call.parts.FixedShape", made)
    hs.attach(target, draft)
    inputs = tiny.prompts(17)
    assert are_same(bits(target, inputs), bits(target, inputs, draft_model=None))
    assert made.call_count == 2


def test_captured_passes(monkeypatch):
    target, draft = pair(torch.float32)
    inputs = tiny.prompts(3)
    expected, capture = bits(target, inputs, draft_model=None), Recorded()
    run_as(monkeypatch, captures=True)
    monkeypatch.setattr("hf_speculative.models.execution.CudaGraph", lambda device, *given: capture(*given))
    monkeypatch.setattr("hf_speculative.models.execution.uncapturable_reason", lambda model: None)
    found = bits(target, inputs, optimize=True, draft_model=None)
    assert are_same(bits(target, inputs, optimize=True, draft_model=draft), found)
    assert torch.allclose(found[1], expected[1], atol=1e-5) and capture.num_replays > 20


def test_the_cache_that_is_returned_goes_on():
    target, draft = pair(torch.float32)
    inputs = tiny.prompts(2) | {"past_key_values": DynamicCache()}
    tokens, _, output = bits(target, inputs, draft_model=draft)
    cached = output.past_key_values
    assert cached.get_seq_length() == tokens.shape[1] - 1
    padding = (inputs["attention_mask"] == 0).sum(1)
    fresh = target(tokens[:1, padding[0] :], use_cache=True).past_key_values
    assert torch.allclose(cached.layers[1].keys[0, :, padding[0] :], fresh.layers[1].keys[0, :, :-1], atol=1e-5)


class LooksAside(nn.Module):
    """Adds a little of what stands in other columns, as routing by capacity does."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states):
        return self.inner(states) + 1e-6 * states.mean((0, 1))


def test_a_model_whose_bits_depend_on_other_columns_is_refused():
    target, _ = pair(torch.float32)
    target.model.layers[0].mlp = LooksAside(target.model.layers[0].mlp)
    with pytest.raises(ValueError, match="other bits where other columns"):
        hs.generate(target, **tiny.prompts(1), **GREEDY, draft_model="suffix", reproducible="bitwise")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prefill_chunk_size": 3}, "leave `prefill_chunk_size=3` out"),
        ({"speculative_config": hs.SpeculativeConfig(lanes=1)}, "`lanes=1` and 3 rows run together"),
        ({"assistant_early_exit": 1}, "drafts into the target's own cache"),
        ({"num_beams": 2}, "num_beams"),
        ({"reproducible": True, "speculative_config": hs.SpeculativeConfig(lanes=4)}, "no effect without"),
        ({"reproducible": "bits"}, "give True or False, or 'bitwise'"),
    ],
)
def test_refused_before_a_forward(more, message, monkeypatch):
    target, _ = pair(torch.float32)
    draft = {} if "assistant_early_exit" in more else {"draft_model": "suffix"}
    monkeypatch.setattr(nn.Embedding, "forward", lambda *args: pytest.fail("a forward"))
    with pytest.raises(ValueError, match=message):
        hs.generate(target, **tiny.prompts(3), **GREEDY | draft | {"reproducible": "bitwise"} | more)


def test_a_cache_that_holds_tokens_is_refused():
    target, draft = pair(torch.float32)
    inputs = {"input_ids": torch.arange(1, 8)[None]}
    cache = target(inputs["input_ids"][:, :4], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="`past_key_values` holds tokens"):
        bits(target, inputs | {"past_key_values": cache}, draft_model=draft)


@pytest.mark.parametrize("model_type", slow_but(["qwen3_next", "granitemoehybrid", "lfm2", "jamba", "mamba2"], "qwen3_next"))
def test_recurrent_layers(model_type):
    """A row that has read nothing before its first token steps from there, as others do."""
    target = built_type("causal", model_type).to(torch.bfloat16)
    first = {"input_ids": torch.tensor([[5]])}
    copies = SAMPLED | {"num_return_sequences": 2}
    for inputs, settings in ((tiny.prompts(3), GREEDY | ENDS), (first, SAMPLED), (first, copies)):
        drafts = [{"draft_model": target, "num_draft_tokens": n} for n in (3, 7)]
        gives_the_bits_of_none(target, inputs, settings, drafts)


def test_other_paths_are_refused():
    target = built_type("causal", "minimax")
    with pytest.raises(ValueError, match="needs passes of one shape, and MiniMaxForCausalLM keeps its states"):
        hs.generate(target, **tiny.prompts(1), **GREEDY, draft_model="suffix", reproducible="bitwise")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("optimize", [False, True])
def test_on_a_gpu(dtype, optimize):
    target, draft = (model.cuda() for model in pair(dtype))
    inputs = {name: value.cuda() for name, value in tiny.prompts(3).items()}
    for settings in (GREEDY, SAMPLED):
        expected = bits(target, inputs, settings, optimize=optimize, draft_model=None)
        assert are_same(bits(target, inputs, settings, optimize=optimize, draft_model=draft), expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*itertools.product(sorted(types_of("causal")), [False, True])][::STRIDE], ids=str)
def test_types(case, monkeypatch):
    """The bits of none, or a refusal: nothing between."""
    model_type, is_attached = case
    try:
        target = built_type("causal", model_type).to(torch.bfloat16)
        inputs = tiny.prompts(2, vocab_size=min(tiny.VOCAB, target.config.get_text_config().vocab_size))
        target.generate(**inputs, **GREEDY)
    except Exception as error:  # as docs/supported-models.md lists them
        pytest.skip(f"cannot be built tiny, or decodes no text: {error}")
    run_as(monkeypatch, has_kernel=True)
    try:
        if is_attached:
            hs.attach(target)
        expected = bits(target, inputs, draft_model=None)
    except ValueError as error:
        assert any(word in str(error) for word in ("bitwise", "`draft_model=None`", "`model`: ")), error
        return
    assert choose(target).name == "ragged"
    assert are_same(bits(target, inputs, draft_model=target, num_draft_tokens=3), expected)
