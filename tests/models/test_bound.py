"""Passes compiled ahead of time, bound to a model's own weights: the same tokens, and never a weight as it was before."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hf_speculative as hs
from hf_speculative.models import artifact_process, artifacts, exported, native, pool
from hf_speculative.models.linears import num_by_kernel
from tests.support import tiny
from tests.support.execution import run_as

LENGTH = {"max_new_tokens": 12, "pad_token_id": 0}
KWARGS = LENGTH | {"do_sample": False}


@pytest.fixture(autouse=True)
def compiles_all(monkeypatch):
    run_as(monkeypatch, has_kernel=True, compile=True)


def attached(model, draft=None):
    return hs.attach(model, draft or tiny.noisy_copy(model))


def generate(model, batch=1, **options):
    return model.generate(**tiny.prompts(batch), **KWARGS, **options).tolist()


@pytest.mark.parametrize("shared", ["q_proj", "all three"])
def test_blocks_that_share_layers(shared, model, emulated):
    first, second = model.model.layers
    for name in ("q_proj", "k_proj", "v_proj") if shared == "all three" else ("q_proj",):
        setattr(second.self_attn, name, getattr(first.self_attn, name))
    expected = generate(model)
    attached(model, draft=tiny.llama())
    assert generate(model) == expected and emulated.runs
    hs.detach(model)
    assert generate(model) == expected


def test_half_precision(emulated):
    model = tiny.llama().to(torch.bfloat16)
    attached(model)
    found = model.generate(**tiny.prompts(3), **KWARGS)
    assert emulated.runs
    assert tiny.num_equal_tokens(model, tiny.prompts(3), found, **LENGTH, draft_model=None) > 18


def writes_once(model, length):
    """A logits processor that doubles the logits of a model, once texts have some `length`."""
    left = [model]

    def process(input_ids, scores):
        if input_ids.shape[1] >= length and left:
            with torch.no_grad():
                left.pop().lm_head.weight.mul_(2)
        return scores

    return process


def test_who_writes_while_a_call_runs(model, emulated):
    """The passes after that are on the weights as they are then."""
    draft = tiny.noisy_copy(model)
    plain = model.generate(**tiny.prompts(1), **KWARGS, return_dict_in_generate=True, output_logits=True)
    attached(model, draft)
    generate(model)
    emulated.runs.clear()
    call = tiny.prompts(1) | KWARGS | {"logits_processor": [writes_once(model, 12)], "num_draft_tokens": 2}
    found = model.generate(**call, return_dict_in_generate=True, output_logits=True)
    assert found.sequences.tolist() == plain.sequences.tolist() and (1, 3) in emulated.runs
    torch.testing.assert_close(found.logits[0], plain.logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.logits[-1], 2 * plain.logits[-1], atol=1e-4, rtol=1e-4)


def test_detach_frees_what_torch_keeps_for_good(model, emulated):
    attached(model)
    generate(model)
    constants = pool.kept(model).artifacts[()].after.aliases
    assert all(constant.numel() for constant in constants)
    hs.detach(model)
    gc.collect()
    assert not any(constant.numel() for constant in constants)


class TestTheName:
    def test_says_what_multiplies(self, model):
        plain = artifacts.path_of(model)
        attached(model)
        assert (artifacts.path_of(model) == plain) == (num_by_kernel(model) == 0)
        hs.detach(model)
        assert artifacts.path_of(model) == plain

    @pytest.mark.parametrize("is_cast", [False, True])
    def test_is_that_of_the_process_which_makes_it(self, model, emulated, monkeypatch, is_cast):
        run_as(monkeypatch, has_kernel=not is_cast, compile="auto")
        if is_cast:
            model.to(torch.bfloat16)  # and buffers, which a model that is made in bfloat16 has in float32
        attached(model)
        assert generate(model) and not emulated.runs
        artifact_process.main(artifact_process.Path(emulated.started[0][-1]))
        assert emulated.num_made == 1 and artifacts.files_of(model).are_there
        assert generate(model) and emulated.runs

    def test_a_file_that_needs_other_weights_is_refused(self, model, emulated):
        attached(model)
        generate(model)
        files = artifacts.files_of(model)
        package = exported.CompiledPackage(files.paths[-1])
        package.constants = {"more": "more.weight"}
        with pytest.raises(exported.Differs, match=r"needs more\.weight, which the model does not have"):
            exported.load(package, files.parts[-1])


@pytest.mark.release
@pytest.mark.parametrize("dtype", native.DTYPES)
def test_with_the_compiler_itself(dtype, folder):
    """Three files a number format; what holds with an emulated compiler holds with this one."""
    model = tiny.llama().to(dtype)
    attached(model)
    for write in (None, lambda weight: weight.data.mul_(-1), lambda weight: setattr(weight, "data", -weight)):
        if write is not None:
            with torch.no_grad():
                write(model.lm_head.weight)
        for batch in (1, 3):
            found = model.generate(**tiny.prompts(batch), **KWARGS)
            assert () in pool.kept(model).artifacts
            assert tiny.num_equal_tokens(model, tiny.prompts(batch), found, **LENGTH, draft_model=None) > 6 * batch
            if dtype == torch.float32:
                assert found.tolist() == generate(model, batch, draft_model=None)
    assert len(list(folder.glob("*.pt2"))) <= 3 * len(native.DTYPES)
    constants = [one for piece in pool.kept(model).artifacts[()].pieces for one in piece.aliases]
    hs.detach(model)
    gc.collect()
    assert not any(constant.numel() for constant in constants)


def test_weights_are_let_go_while_fake_tensors_are_made():
    """As by the garbage collector, while another model is compiled."""
    weight = torch.zeros(4, 4)
    with FakeTensorMode():
        exported._empty([weight])
    assert weight.numel() == 0
