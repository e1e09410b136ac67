"""Where weights lie and in what form: offloaded, quantised, of another dtype, on another device."""

import copy
import functools
from unittest import mock

import pytest
import torch
from accelerate import cpu_offload, disk_offload

import hf_speculative as hs
from hf_speculative.heads import load_head
from tests.architectures.check import build, prompts
from tests.support import heads, tied, tiny
from tests.support.cases import slow_but
from tests.support.placement import quantised, torchao_or_skip
from tests.support.plain import agrees

NEW = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def torchao():
    return torchao_or_skip()


@pytest.fixture(params=slow_but(["llama", "bloom", "qwen3_next", "t5"], "llama", "qwen3_next", "t5"))
def kind(request):
    mapping = "seq2seq" if request.param == "t5" else "causal"
    model = build(mapping, request.param)
    return model, prompts(mapping, model, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantised_weights(kind, torchao):
    """Each with its own plain decoding: int8 weights on either side."""
    model, inputs = kind
    small, draft = quantised(model, torchao), tiny.noisy_copy(model, 0.05)
    agrees(small, inputs | NEW, draft_model=draft)
    assert agrees(model, inputs | NEW, draft_model=small).draft_acceptance_rate > 0.3


class RoundsItsInputs(torch.nn.Linear):
    """As int8 activations with one scale for a whole pass."""

    def forward(self, input):
        return super().forward(rounded(input))


class RoundsEachToken(torch.nn.Linear):
    """With a scale for each token: what rounding makes of a small difference depends on the pass, and is rarely seen."""

    def forward(self, input):
        scale = input.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
        return super().forward((input / scale).round() * scale)


def rounded(input):
    scale = input.abs().max() / 127
    return (input / scale).round() * scale


def with_quantised_inputs(model, how, torchao):
    model = copy.deepcopy(model)
    if how == "torchao":
        torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())
    elif how == "torch":
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    for name, module in model.named_modules():
        if type(module) is not torch.nn.Linear or name == "lm_head" or not how.startswith("own"):
            continue
        if how == "own class":
            module.__class__ = RoundsItsInputs
        elif how == "own class, by token":
            module.__class__ = RoundsEachToken
        elif how == "own hook":
            module.register_forward_pre_hook(lambda module, args: (rounded(args[0]),))
        else:
            module.forward = functools.partial(lambda own, x: type(own).forward(own, rounded(x)), module)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", slow_but(["qwen3_next", "t5"], "t5", every=True), indirect=True)
@pytest.mark.parametrize("how", slow_but(["torchao", "torch", "own class", "own hook", "own forward"], "own hook"))
def test_layers_that_quantise_their_inputs(kind, how, torchao):
    """What they compute for a token depends on the others of its pass: no target, but a draft may well be such a model."""
    model, inputs = kind
    small, draft = with_quantised_inputs(model, how, torchao), tiny.noisy_copy(model, 0.05)
    with pytest.raises(ValueError, match=r"`model`: .*quantise their inputs.*`draft_model=None`"):
        hs.generate(small, **inputs, **NEW, draft_model=draft)
    agrees(model, inputs | NEW, draft_model=small)
    answer = hs.check(small)
    assert not answer and "quantise their inputs" in answer.reason and "None" not in answer.reason


def test_layers_that_quantise_each_token(torchao):
    """Rounding falls otherwise for one token in a hundred. Of a type whose ragged cache is known, no prompt is asked."""
    model = with_quantised_inputs(build("causal", "llama"), "own class, by token", torchao)
    for seed in range(4):
        ids = torch.randint(2, 90, (1, 3 + seed), generator=torch.manual_seed(seed))
        inputs = prompts("causal", model, 1) | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with pytest.raises(ValueError, match="quantise their inputs"):
            hs.generate(model, **inputs, **NEW, draft_model=model)
    assert not hs.check(model)


def test_a_draft_of_another_dtype(kind):
    model, inputs = kind
    draft = copy.deepcopy(model).to(torch.bfloat16)
    assert agrees(model, inputs | NEW, draft_model=draft).draft_acceptance_rate > 0.3


@pytest.mark.parametrize("kind", ["dflash", "mtp head", "mtp"])
def test_a_head_whose_target_changes_its_dtype(kind, tmp_path):
    """Heads keep theirs; the layers of the target's own checkpoint go with it."""
    if kind == "dflash":
        model, draft = tied.with_dflash(4)
    elif kind == "mtp":
        tied.mtp_or_skip()
        model, draft = tied.with_mtp(tmp_path), True
    else:
        model = tiny.build("llama")
        draft = load_head(heads.write_mtp(tmp_path / "head", model))
    given = {"use_mtp": True} if kind == "mtp" else {"draft_model": draft}
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        model.to(dtype)
        with hs.record() as stats:
            found = hs.generate(model, **tiny.prompts(2), **NEW, **given, num_draft_tokens=2)
        assert stats.num_draft_tokens
    assert found.tolist() == model.generate(**tiny.prompts(2), **NEW).tolist()


def test_layers_of_a_checkpoint_leave_the_target_as_it_is(tmp_path):
    """They share parts with it, of which some are kept in float32."""
    tied.mtp_or_skip()
    made = tied.with_mtp(tmp_path)
    with mock.patch.object(type(made), "_keys_to_ignore_on_load_unexpected", made._keys_to_ignore_on_load_unexpected):
        model = type(made).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    model._keys_to_ignore_on_load_unexpected = made._keys_to_ignore_on_load_unexpected
    tensors = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    assert len({tensor.dtype for tensor in tensors.values()}) == 2
    with hs.record() as stats:
        hs.generate(model, **tiny.prompts(2), **NEW, use_mtp=True)
    assert stats.num_draft_tokens
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_target_in_half_precision(kind, dtype):
    model, inputs = kind
    model = copy.deepcopy(model).to(dtype)
    with hs.record() as stats:
        found = hs.generate(model, **inputs, **NEW, draft_model=tiny.noisy_copy(model, 0.15), num_draft_tokens=4)
    length = {"max_new_tokens": NEW["max_new_tokens"], "pad_token_id": 0}
    assert tiny.num_equal_tokens(model, inputs, found, **length) > 20, "rows are compared for a while"
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens


@pytest.mark.filterwarnings("ignore:You are calling .generate")  # transformers before 5.23, of plain calls too
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_offloaded_weights(kind, where, tmp_path):
    """accelerate keeps them elsewhere and brings them layer by layer."""
    model, inputs = kind
    expected = model.generate(**inputs, **NEW).tolist()
    draft, away = tiny.noisy_copy(model, 0.05), copy.deepcopy(model)
    if where == "cpu":
        cpu_offload(away, execution_device=torch.device("cpu"))
    else:
        disk_offload(away, str(tmp_path), execution_device=torch.device("cpu"))
    assert away.device.type == "meta"
    assert hs.generate(away, **inputs, **NEW, draft_model=draft).tolist() == expected
    assert hs.generate(model, **inputs, **NEW, draft_model=away).tolist() == expected


@pytest.mark.gpu
@pytest.mark.parametrize("target_device", ["cpu", "cuda"])
def test_two_devices(kind, target_device):
    model, inputs = kind
    draft = tiny.noisy_copy(model, 0.05).to("cuda" if target_device == "cpu" else "cpu")
    model = copy.deepcopy(model).to(target_device)
    agrees(model, {name: value.to(target_device) for name, value in inputs.items()} | NEW, draft_model=draft)
