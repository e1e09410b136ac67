"""Packed weights: the same tokens, the plain weights for whoever looks at them, and nothing packed that somebody else has."""

import copy
import gc
import io
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import hf_speculative as hs
from hf_speculative.models import packing
from hf_speculative.models.packed_layers import MOST_RESTORED, dtypes, is_packed
from tests.support import tiny
from tests.support.execution import have_equal_weights, num_packed, run_as, weights

pytestmark = pytest.mark.skipif(not dtypes(), reason="nothing can be packed on this machine")
KWARGS = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def packs_all(monkeypatch):
    run_as(monkeypatch, packs=True)


@pytest.fixture(params=["eager", "compiled"])
def passes(request, monkeypatch, emulated):
    """The passes of a test, which are made at most once, and run from a file in the end where they are compiled."""
    run_as(monkeypatch, packs=True, compile=request.param == "compiled")
    yield emulated
    assert bool(emulated.runs) == (request.param == "compiled")


def generate(model, batch=1, **options):
    return model.generate(**tiny.prompts(batch), **KWARGS, **options).tolist()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_greedy_tokens_are_those_of_plain_decoding(kind, passes):
    """On the same packed weights and on the plain ones; GPT-2's layers are square among others, with weights the other way."""
    model = tiny.build(kind)
    draft, before = tiny.noisy_copy(model), weights(model)
    expected = {batch: generate(model, batch) for batch in (1, 3)}
    hs.attach(model, draft)
    found = num_packed(model)
    assert found >= 2
    for batch in (3, 1):
        for call in ({"draft_model": None}, {}, {"num_draft_tokens": 4}):
            assert generate(model, batch, **call) == expected[batch]
            assert num_packed(model) == num_packed(draft) == found, "nothing on the way reads a plain weight"
    assert passes.num_made <= 1
    hs.detach(model)
    assert num_packed(model) == num_packed(draft) == 0
    assert have_equal_weights(model, before)
    assert not any(type(module).__name__.startswith("Packed") for module in model.modules())


@pytest.mark.parametrize("dtype", dtypes())
def test_logits(dtype):
    model, ids = tiny.llama().to(dtype), torch.arange(12).view(2, 6)
    with torch.no_grad():
        expected = model(ids).logits
        packing.pack_weights(model, has_small=True)
        found = model(ids).logits
    assert num_packed(model) == 15
    torch.testing.assert_close(found, expected, atol=tiny.ROUNDING if dtype != torch.float32 else 1e-4, rtol=0.02)


LOOKS = {
    "weight": lambda m: m.lm_head.weight,
    "parameters": lambda m: list(m.parameters()),
    "named_parameters": lambda m: dict(m.named_parameters()),
    "get_parameter": lambda m: m.get_parameter("lm_head.weight"),
    "state_dict": lambda m: m.state_dict(),
    "vars": lambda m: dict(vars(m.lm_head)["_parameters"]),
    "optimizer": lambda m: torch.optim.SGD(m.parameters()),
    "inference mode": lambda m: torch.inference_mode()(lambda: m.lm_head.weight + 0)(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_at_a_weight_sees_it(model, look):
    before = weights(model)
    hs.attach(model, draft_model="suffix")
    seen = LOOKS[look](model)
    assert not is_packed(model.lm_head)
    assert torch.equal(model.lm_head.weight, before["lm_head.weight"])
    del seen
    hs.detach(model)
    assert have_equal_weights(model, before)


def test_copies_files_and_pickles_are_plain(packed, tmp_path):
    expected, before = generate(packed), weights(packed)

    def again():  # each of them asked for the weights
        hs.detach(packed)
        return hs.attach(packed, draft_model="suffix")

    for copied in (copy.deepcopy(again()), pickle.loads(pickle.dumps(again()))):
        assert type(copied.lm_head) is nn.Linear
        assert type(copied.lm_head._parameters) is dict
        assert have_equal_weights(copied, before)
        assert generate(copied) == expected
    again().save_pretrained(tmp_path)
    assert have_equal_weights(type(packed).from_pretrained(tmp_path), before)
    file = io.BytesIO()
    torch.save(again().state_dict(), file)
    file.seek(0)
    assert all(torch.equal(found, before[name]) for name, found in torch.load(file).items())


def _merge_lora(model):
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], r=2, init_lora_weights=False))
    adapted.merge_and_unload()


CHANGES = {
    "in place": lambda m: m.lm_head.weight.data.mul_(-1),
    "embedding": lambda m: m.model.embed_tokens.weight.data.mul_(-1),
    "load_state_dict": lambda m: m.load_state_dict({name: -tensor for name, tensor in m.state_dict().items()}),
    "another parameter": lambda m: setattr(m.lm_head, "weight", nn.Parameter(-m.lm_head.weight.detach())),
    "LoRA": _merge_lora,
    "to": lambda m: m.to(torch.float64),
    "apply": lambda m: m.apply(lambda module: [p.data.mul_(-1) for p in module.parameters(recurse=False)]),
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 asks for it
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change(change, passes, model, plain):
    """The next call runs on what the weights are then, packed again or not."""
    hs.attach(model, draft_model="suffix")
    before, ids = generate(model, 2), tiny.prompts(2)["input_ids"]
    passes.runs.clear()
    with torch.no_grad():
        for one in (plain, model):
            CHANGES[change](one)
        torch.testing.assert_close(model(ids).logits, plain(ids).logits)
    found = generate(model, 2)
    assert found == generate(plain, 2) and (found != before or change == "to")
    assert num_packed(model) == (0 if change == "to" else 15)
    assert passes.num_made <= 1 + (change == "to")
    assert have_equal_weights(hs.detach(model), plain.state_dict())


def test_gradients_are_those_of_plain_weights(plain, packed):
    ids = tiny.prompts(2)["input_ids"]
    for one in (plain, packed):
        one(ids, labels=ids).loss.backward()
    gradients = [{name: weight.grad for name, weight in one.named_parameters()} for one in (plain, packed)]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
    generate(packed)
    assert num_packed(packed) == 0  # gradients are waiting for a step


HOLDERS = {
    "optimizer": lambda m: torch.optim.SGD(m.parameters()),
    "list": lambda m: [m.lm_head.weight, m.model.layers[0].mlp.up_proj.weight],
    "state_dict": lambda m: m.state_dict(),
    "numpy": lambda m: m.lm_head.weight.detach().numpy(),
    "graph": lambda m: m(torch.arange(4).view(1, 4)).logits,
    "another model": lambda m: _sharing(m),
    "another process": lambda m: m.share_memory() and None,
}


def _sharing(model):
    other = tiny.llama()
    other.lm_head.weight = model.lm_head.weight
    return other


@pytest.mark.parametrize("holder", HOLDERS)
def test_weights_that_something_else_has_stay_plain(model, holder):
    held = HOLDERS[holder](model)
    packing.pack_weights(model, has_small=True)
    assert not is_packed(model.lm_head)
    assert "other code refers to" in packing.describe(model)
    if holder != "another process":
        del held
        gc.collect()
        packing.unpack_weights(model)
        packing.pack_weights(model, has_small=True)
        assert is_packed(model.lm_head)


@pytest.mark.parametrize("write", [lambda w: w.mul_(2), lambda w: w.data.mul_(2)])
def test_a_shared_head_is_a_checked_copy(write, passes):
    """The embedding needs the plain weight, so whoever writes to it does not ask the head."""
    model, changed = (tiny.build("llama", tie_word_embeddings=True) for _ in range(2))
    hs.attach(model, draft_model="suffix")
    assert "a second copy" in packing.describe(model)
    assert generate(model) == generate(changed)
    assert is_packed(model.lm_head)
    with torch.no_grad():
        for one in (model, changed):
            one.lm_head.weight = one.model.embed_tokens.weight  # transformers ties them so, and nothing changes
            write(one.model.embed_tokens.weight)
            write(one.lm_head.weight[: tiny.VOCAB // 2])
    assert generate(model) == generate(changed)
    assert is_packed(model.lm_head) and passes.num_made <= 1
    hs.detach(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_autocast(plain, packed):
    ids = tiny.prompts(1)["input_ids"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(packed(ids).logits, plain(ids).logits)


def test_packed_again_but_not_for_ever(packed):
    for num in range(1, MOST_RESTORED + 2):
        generate(packed)
        assert is_packed(packed.lm_head) == (num <= MOST_RESTORED)
        packed.lm_head.weight.sum()


def test_a_model_that_wraps_layers_in_functions_of_its_own():
    model, calls = tiny.llama(), []
    head = model.lm_head
    forward = head.forward
    head.forward = lambda input: calls.append(1) or forward(input)
    hs.attach(model, draft_model="suffix")
    assert num_packed(model) == 14
    generate(model)
    assert calls


def test_passes_compiled_in_the_process_take_plain_weights(model, monkeypatch):
    """And keep them from call to call: passes are compiled anew where weights have moved."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    for one in (model, model.model.layers[0]):
        one.register_forward_pre_hook(lambda *args: None)  # with which nothing is compiled ahead of time
    draft = tiny.noisy_copy(model)
    expected = generate(model)
    run_as(monkeypatch, packs=True, compile=True)
    hs.attach(model, draft)
    places = [weight.data_ptr() for weight in model.parameters()]
    for _ in range(2):
        assert generate(model) == expected
        assert num_packed(model) == num_packed(draft) == 0
        assert [weight.data_ptr() for weight in model.parameters()] == places


def test_models_elsewhere_are_left_alone(model):
    on_meta = tiny.llama().to("meta")
    assert packing.packing_unsupported_reason(on_meta) == "is on meta, and packed weights are for CPUs"
    model.lm_head._hf_hook = object()
    hs.attach(model, draft_model="suffix")
    assert num_packed(model) == 0
    assert packing.describe(model) == "not packed: is offloaded, or spread over devices"


def test_check_says_so(packed):
    answer = hs.check(packed, tiny.llama())
    assert answer.target.weights.startswith("15 of 15 linear layers are packed")
    assert answer.draft.weights == "plain; `attach` packs them, unless `optimize=False`"
    packed.lm_head.weight.sum()
    assert "1 more when the next call begins" in hs.check(packed).target.weights
