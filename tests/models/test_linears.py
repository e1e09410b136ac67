"""Linear layers that multiply by our kernel: the same tokens, on the weights as they are at the moment."""

import copy
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hf_speculative as hs
from hf_speculative.models import linears, native, pool
from hf_speculative.models.linears import KernelLinear, num_by_kernel, use_kernel
from tests.support import tiny
from tests.support.execution import have_equal_weights, run_as, weights

pytestmark = pytest.mark.skipif(not native.has_kernel(), reason="the kernel cannot be built on this machine")
KWARGS = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def uses_kernel(monkeypatch):
    run_as(monkeypatch, has_kernel=True)


@pytest.fixture
def products_made(monkeypatch):
    """The shapes of the weights that the kernel multiplies with."""
    shapes, linear = [], native.linear

    def noted(input, weight, bias=None):
        shapes.append(tuple(weight.shape))
        return linear(input, weight, bias)

    monkeypatch.setattr(native, "linear", noted)
    return shapes


@pytest.fixture(params=["eager", "compiled"])
def passes(request, monkeypatch, emulated):
    """The passes of a test, which are made at most once, and run from a file in the end where they are compiled."""
    run_as(monkeypatch, has_kernel=True, compile=request.param == "compiled")
    yield emulated
    assert bool(emulated.runs) == (request.param == "compiled")


def generate(model, batch=1, **options):
    return model.generate(**tiny.prompts(batch), **KWARGS, **options).tolist()


@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen2"])
def test_greedy_tokens_are_those_of_plain_decoding(kind, passes):
    model = tiny.build(kind)
    draft, before = tiny.noisy_copy(model), weights(model)
    places = [(id(weight), weight.data_ptr()) for weight in model.parameters()]
    expected = {batch: generate(model, batch) for batch in (1, 3)}
    hs.attach(model, draft)
    found = num_by_kernel(model)
    assert found == num_by_kernel(draft) >= 2
    for batch in (3, 1):
        for call in ({"draft_model": None}, {}, {"num_draft_tokens": 4}):
            assert generate(model, batch, **call) == expected[batch]
    assert num_by_kernel(model) == found and passes.num_made <= 1
    hs.detach(model)
    assert num_by_kernel(model) == num_by_kernel(draft) == 0
    assert [(id(weight), weight.data_ptr()) for weight in model.parameters()] == places
    assert have_equal_weights(model, before)
    assert not any(isinstance(module, KernelLinear) for module in model.modules())


@pytest.mark.parametrize("dtype", native.DTYPES)
def test_logits(dtype, products_made):
    model, ids = tiny.llama().to(dtype), torch.arange(12).view(2, 6)
    with torch.no_grad():
        expected = model(ids).logits
        assert not products_made
        use_kernel(model)
        found = model(ids).logits
    assert len(products_made) == num_by_kernel(model) == 15
    torch.testing.assert_close(found, expected, atol=tiny.ROUNDING if dtype != torch.float32 else 1e-4, rtol=0.02)


def test_small_float32_layers_are_left_to_torch(model, products_made, monkeypatch):
    """In eager passes, where a layer's own Python takes what the kernel gains."""
    monkeypatch.setattr(linears, "LEAST_BYTES", 4 * model.lm_head.weight.numel())
    use_kernel(model)
    with torch.no_grad():
        model(torch.arange(4)[None])
    assert len(products_made) == 7


def _merge_lora(model):
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj", "down_proj"], r=2, init_lora_weights=False))
    adapted.merge_and_unload()


def _transpose(weight):
    weight.data = weight.data.t()


#: of which passes are made anew
MADE_ANEW = {"to", "transposed", "transposed in place", "another activation", "another scale"}
CHANGES = {
    "in place": lambda m: m.lm_head.weight.data.mul_(-1),
    "embedding": lambda m: m.model.embed_tokens.weight.data.mul_(-1),
    "load_state_dict": lambda m: m.load_state_dict({name: -tensor for name, tensor in m.state_dict().items()}),
    "another parameter": lambda m: setattr(m.lm_head, "weight", nn.Parameter(-m.lm_head.weight.detach())),
    "another memory": lambda m: setattr(m.lm_head.weight, "data", -m.lm_head.weight.detach()),
    "transposed": lambda m: setattr(m.lm_head.weight, "data", -m.lm_head.weight.detach().t().contiguous().t()),
    "LoRA": _merge_lora,
    "transposed in place": lambda m: [_transpose(layer.self_attn.q_proj.weight) for layer in m.model.layers],
    "another activation": lambda m: [setattr(layer.mlp, "act_fn", nn.ReLU().eval()) for layer in m.model.layers],
    "another scale": lambda m: [setattr(layer.self_attn, "scaling", 3.0) for layer in m.model.layers],
    "to": lambda m: m.to(torch.float64),
    "apply": lambda m: m.apply(lambda module: [p.data.mul_(-1) for p in module.parameters(recurse=False)]),
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 asks for it
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change(change, passes, model, plain):
    """The next call runs on what the weights are then."""
    hs.attach(model, draft_model="suffix")
    before, ids = generate(model, 2), tiny.prompts(2)["input_ids"]
    passes.runs.clear()
    with torch.no_grad():
        for one in (plain, model):
            CHANGES[change](one)
        torch.testing.assert_close(model(ids).logits, plain(ids).logits)
    found = generate(model, 2)
    assert found == generate(plain, 2) and (found != before or change == "to")
    assert passes.num_made <= 1 + (change in MADE_ANEW)
    assert have_equal_weights(hs.detach(model), plain.state_dict())


def test_tied_weights_that_change(passes):
    model, changed = (tiny.build("llama", tie_word_embeddings=True) for _ in range(2))
    hs.attach(model, draft_model="suffix")
    assert generate(model) == generate(changed)
    with torch.no_grad():
        for one in (model, changed):
            one.model.embed_tokens.weight.data.mul_(2)
            one.lm_head.weight[: tiny.VOCAB // 2].mul_(2)
    assert generate(model) == generate(changed) and passes.num_made <= 1


def test_copies_files_and_pickles_are_plain(model, tmp_path):
    hs.attach(model, draft_model="suffix")
    expected, before = generate(model), weights(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied.lm_head) is nn.Linear and have_equal_weights(copied, before)
        assert generate(copied) == expected
    model.save_pretrained(tmp_path)
    assert have_equal_weights(type(model).from_pretrained(tmp_path), before)


def test_training_is_torchs_own(plain, model, products_made):
    ids = tiny.prompts(2)["input_ids"]
    hs.attach(model, draft_model="suffix")
    for one in (plain, model):
        one(ids, labels=ids).loss.backward()
    assert not products_made
    for name, weight in plain.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, weight.grad)
    generate(model)
    assert products_made


def test_derivatives_in_forward_mode_are_torchs_own(plain, model, products_made):
    hs.attach(model, draft_model="suffix")
    states = torch.randn(2, 3, model.config.hidden_size)
    found, expected = (
        torch.func.jvp(one.requires_grad_(False).lm_head, (states,), (torch.ones_like(states),))[1] for one in (model, plain)
    )
    assert torch.equal(found, expected) and not products_made


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_files_that_others_make_run_without_the_kernel(model, products_made):
    hs.attach(model, draft_model="suffix")
    layer, states = model.model.layers[0].mlp.requires_grad_(False), torch.randn(2, 3, model.config.hidden_size)
    with torch.no_grad():
        assert "ops.hf_speculative" not in torch.export.export(layer, (states,)).graph_module.code
        assert "hf_speculative::" not in str(torch.jit.trace(layer, states).inlined_graph)
        torch.testing.assert_close(layer(states), torch.jit.trace(layer, states)(states))
    assert products_made


def test_operations_are_counted(plain, model):
    counts = []
    for one in (plain, hs.attach(model, draft_model="suffix")):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            one(**tiny.prompts(2))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_a_call_may_leave_products_to_torch(model, products_made):
    hs.attach(model, draft_model="suffix")
    generate(model, speculative_config=hs.SpeculativeConfig(optimize=False))
    assert not products_made
    generate(model)
    assert products_made


def test_passes_compiled_without_it_are_not_those_of_an_attached_model(model, emulated, monkeypatch):
    run_as(monkeypatch, has_kernel=True, compile=True)
    config = hs.SpeculativeConfig(optimize=True)
    hs.generate(model, **tiny.prompts(1), **KWARGS, draft_model="suffix", speculative_config=config)
    before = pool.kept(model).artifacts[()]
    hs.attach(model, draft_model="suffix")
    generate(model)
    assert pool.kept(model).artifacts[()] is not before and emulated.num_made == 2


def test_autocast(plain, model, products_made):
    hs.attach(model, draft_model="suffix")
    ids = tiny.prompts(1)["input_ids"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(ids).logits, plain(ids).logits)
    assert not products_made


def test_layers_with_functions_of_another_library(model):
    calls, head = [], model.lm_head
    forward = head.forward
    head.forward = lambda input: calls.append(1) or forward(input)
    expected = generate(model)
    hs.attach(model, draft_model="suffix")
    calls.clear()
    assert generate(model) == expected and calls
    hs.detach(model)
    assert "forward" in vars(head)


@pytest.mark.release
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_under_torch_compile(model, plain):
    """The user's own: inference by the kernel, training by torch."""
    use_kernel(model)
    ids, compiled = tiny.prompts(2)["input_ids"], torch.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)
    for one in (compiled, plain):
        one(ids, labels=ids).loss.backward()
    torch.testing.assert_close(model.lm_head.weight.grad, plain.lm_head.weight.grad, atol=1e-5, rtol=1e-4)


def test_elsewhere_torch_multiplies(monkeypatch):
    model = tiny.llama().to("meta")
    use_kernel(model)
    assert not num_by_kernel(model) and "the model is on meta" in linears.describe(model)
    monkeypatch.setattr(native, "no_kernel_reason", lambda: "no compiler")
    assert linears.describe(tiny.llama()) == "multiplied by torch: HF_SPECULATIVE_PASSES=off"
    monkeypatch.delenv("HF_SPECULATIVE_PASSES")
    use_kernel(model := tiny.llama())
    assert not num_by_kernel(model) and linears.describe(model) == "multiplied by torch: no compiler"


def test_check_says_so(model, monkeypatch):
    monkeypatch.delenv("HF_SPECULATIVE_PASSES")
    hs.attach(model, draft_model="suffix")
    answer = hs.check(model, tiny.llama())
    assert answer.target.linears == "15 of 15 linear layers multiply by hf_speculative's kernel"
    assert "`attach` lets hf_speculative's kernel do it" in answer.draft.linears
