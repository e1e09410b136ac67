"""Passes compiled ahead of time on packed weights: the same tokens, and never a weight as it was before."""

import gc
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hf_speculative as hs
from hf_speculative.models import artifact_process, artifacts, bound, exported, packing, pool, traced
from hf_speculative.models.bound import BoundPass, Moved
from hf_speculative.models.packed_layers import MOST_RESTORED, dtypes, packed_of
from hf_speculative.models.products import unpacked
from tests.support import tiny
from tests.support.execution import run_as
from tests.support.plain import ours

pytestmark = pytest.mark.skipif(not dtypes(), reason="nothing can be packed on this machine")
LENGTH = {"max_new_tokens": 12, "pad_token_id": 0}
KWARGS = LENGTH | {"do_sample": False}


@pytest.fixture(autouse=True)
def packs_and_compiles_all(monkeypatch):
    run_as(monkeypatch, packs=True, compile=True)


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
    if torch.bfloat16 not in dtypes():
        pytest.skip("bfloat16 is not packed on this machine")
    model = tiny.llama().to(torch.bfloat16)
    attached(model)
    found = model.generate(**tiny.prompts(3), **KWARGS)
    assert len(packed_of(model)) == 15 and emulated.runs
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
    """The passes after that are eager ones, on the weights as they are then."""
    draft = tiny.noisy_copy(model)
    plain = model.generate(**tiny.prompts(1), **KWARGS, return_dict_in_generate=True, output_logits=True)
    attached(model, draft)
    generate(model)
    emulated.runs.clear()
    call = tiny.prompts(1) | KWARGS | {"logits_processor": [writes_once(model, 12)], "num_draft_tokens": 2}
    found = model.generate(**call, return_dict_in_generate=True, output_logits=True)
    assert found.sequences.tolist() == plain.sequences.tolist()
    assert (1, 3) in emulated.runs and emulated.runs.count((1, 3)) < len(plain.logits) // 2
    torch.testing.assert_close(found.logits[0], plain.logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.logits[-1], 2 * plain.logits[-1], atol=1e-4, rtol=1e-4)


def test_a_shared_head_that_is_written_to_between_two_passes(emulated):
    model = tiny.build("llama", tie_word_embeddings=True)
    attached(model)
    generate(model)
    one_pass = pool.kept(model).artifacts[()]
    inputs = list(traced.Pass(model).sample(2, 3, 9))
    with torch.no_grad():
        assert one_pass(inputs) is not None
        model.model.embed_tokens.weight.mul_(2)
        assert one_pass(inputs) is None


class TestMemory:
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_is_let_go_of_when_somebody_looks(self, device, model, emulated):
        """torch keeps the constants of a file for good, so they are emptied; also while transformers loads another model."""
        attached(model)
        generate(model)
        one_pass = pool.kept(model).artifacts[()]
        constants = one_pass.after.compiled.given
        assert constants["whole.model.lm_head.weight"] is not None
        with torch.device(device):
            model.lm_head.weight.sum()
        assert one_pass.after.is_over and all(constant.numel() <= 1 for constant in constants.values())

    def test_a_pass_on_plain_weights_is_no_reason_to_keep_them_plain(self, model, emulated):
        ours(model, tiny.prompts(1), draft_model=tiny.noisy_copy(model), optimize=True)
        assert emulated.runs
        attached(model)
        assert len(packed_of(model)) == 15


def test_weights_end_when_a_pass_that_runs_is_over(model):
    class Slow:
        def __init__(self):
            self.begun, self.may_end = threading.Event(), threading.Event()

        def load_constants(self, constants):
            self.constants = constants

        def run(self, inputs):
            self.begun.set()
            self.may_end.wait(10)
            return [unpacked(self.constants["head"], tiny.VOCAB).sum()]

    packing.pack_weights(model, has_small=True)
    slow, found = Slow(), []
    one_pass = BoundPass(slow, {}, {"head": packed_of(model)["lm_head"]})
    runner = threading.Thread(target=lambda: found.append(one_pass([])))
    looker = threading.Thread(target=lambda: model.lm_head.weight.sum())
    runner.start()
    slow.begun.wait(10)
    looker.start()
    looker.join(0.1)
    assert looker.is_alive() and not one_pass.is_over
    slow.may_end.set()
    for thread in (runner, looker):
        thread.join(10)
    assert torch.isfinite(found[0][0]) and one_pass.is_over and one_pass([]) is None
    with pytest.raises(Moved):
        BoundPass(slow, {}, {"head": next(iter(packed_of(model).values())), "gone": model.lm_head._parameters})


class TestTheName:
    def test_says_which_layers_are_packed(self, model):
        plain = artifacts.path_of(model)
        packing.pack_weights(model, has_small=True)
        packed = artifacts.path_of(model)
        assert packed.name.startswith(f"{plain.stem}-packed-")
        model.lm_head.weight.sum()
        assert artifacts.path_of(model) not in (plain, packed)
        packing.unpack_weights(model)
        assert artifacts.path_of(model) == plain

    @pytest.mark.parametrize("is_cast", [False, True])
    def test_is_that_of_the_process_which_makes_it(self, model, emulated, monkeypatch, is_cast):
        monkeypatch.setattr(artifact_process.os, "nice", lambda by: None)
        run_as(monkeypatch, packs=not is_cast, compile="auto")
        if is_cast:
            model.to(torch.bfloat16)  # and buffers, which a model that is made in bfloat16 has in float32
        attached(model)
        assert generate(model) and not emulated.runs
        artifact_process.main(artifact_process.Path(emulated.started[0][-1]))
        assert emulated.num_made == 1 and artifacts.files_of(model).are_there
        assert generate(model) and emulated.runs

    def test_a_file_for_other_layers_is_refused(self, model, emulated):
        attached(model)
        generate(model)
        path = artifacts.files_of(model).paths[-1]
        model.lm_head.weight.sum()
        with pytest.raises(exported.Differs, match="other layers of the model are packed"):
            exported.load(exported.CompiledPackage(path), artifacts.files_of(model).parts[-1])


def test_compiled_passes_pack_more_layers(model, emulated, monkeypatch):
    """Small ones too, which in eager passes, as the first call here runs, gain less than their Python costs."""

    def run(**execution):
        run_as(monkeypatch, packs=True, **execution)
        monkeypatch.setattr(packing, "LEAST_BYTES", 4 * model.lm_head.weight.numel())

    run()
    attached(model)
    eager = generate(model)
    assert len(packed_of(model)) == 7 and not emulated.runs
    assert "8 stay plain, small, and not faster packed" in packing.describe(model)
    run(compile=True)
    assert generate(model) == eager
    assert len(packed_of(model)) == 15 and emulated.num_made == 1 and emulated.runs
    run()
    assert generate(model) == eager and len(packed_of(model)) == 15, "nothing is packed anew from call to call"
    run(compile=True)
    again = attached(tiny.llama())
    assert len(packed_of(again)) == 15
    generate(again)
    assert emulated.num_made == 1
    hs.detach(model)
    assert not packed_of(model)


def test_where_somebody_often_asks_passes_take_plain_weights(model, emulated):
    """Otherwise each choice of layers that are left would be a file of its own."""
    attached(model)
    expected = generate(model)
    for _ in range(MOST_RESTORED + 1):
        model.lm_head.weight.sum()
        assert generate(model) == expected
    assert not packed_of(model) and emulated.num_made == 2
    assert "15 stay plain, in compiled passes, since other code refers" in packing.describe(model)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", dtypes())
def test_with_the_compiler_itself(dtype, folder):
    """Three files a number format; what holds with an emulated compiler holds with this one."""
    model = tiny.llama().to(dtype)
    attached(model)
    for write in (None, lambda weight: weight.data.mul_(-1), lambda weight: weight.data.mul_(-1)):
        if write is not None:
            one_pass = pool.kept(model).artifacts[()]
            write(model.lm_head.weight)
            assert one_pass.after.is_over
        for batch in (1, 3):
            found = model.generate(**tiny.prompts(batch), **KWARGS)
            assert pool.kept(model).artifacts[()].is_current() and len(packed_of(model)) == 15
            assert tiny.num_equal_tokens(model, tiny.prompts(batch), found, **LENGTH, draft_model=None) > 6 * batch
            if dtype == torch.float32:
                assert found.tolist() == generate(model, batch, draft_model=None)
    assert len(list(folder.glob("*-packed-*.pt2"))) == len(list(folder.glob("*.pt2"))) <= 3 * len(dtypes())
    constants = [one for piece in pool.kept(model).artifacts[()].pieces for one in piece.aliases]
    hs.detach(model)
    gc.collect()
    assert all(constant.numel() <= 1 for constant in constants)


def test_weights_are_let_go_while_fake_tensors_are_made():
    """As by the garbage collector, while another model is compiled."""
    packed, plain = torch.zeros(4, 4).to_mkldnn(), torch.zeros(4, 4)
    with FakeTensorMode():
        bound._empty([packed, plain])
    assert plain.numel() == 0 and packed.shape == (1, 1)
