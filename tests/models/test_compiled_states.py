"""Passes compiled ahead of time that give hidden states, for heads: a file for each choice of layers."""

import pytest
import torch

import hf_speculative as hs
from hf_speculative import SpeculativeConfig
from hf_speculative.models import artifacts, attention, exported, packing, pool, traced
from hf_speculative.schedules import Constant
from tests.support import fitted, tiny
from tests.support.execution import run_as
from tests.support.plain import reproduces_plain, same_as_plain, takes_lanes

PROMPT = [3, 7, 11, 5]
RECORDED = tuple(fitted.LAYERS)
CHAINS = {"tree_top_k": 1}


@pytest.fixture(scope="module")
def fitted_head():
    model = fitted.target()
    return model.state_dict(), fitted.head_for(model, [PROMPT])


@pytest.fixture
def pair(fitted_head):
    """A target of its own, and a head that it accepts tokens of."""
    weights, head = fitted_head
    model = fitted.target()
    model.load_state_dict(weights)
    return model, head


def test_states_are_kept_where_eager_passes_keep_them(pair, emulated):
    model, head = pair
    call = {"draft_model": head, "speculative_config": SpeculativeConfig(schedule=Constant(3)), **CHAINS}
    inputs = {"input_ids": torch.tensor([PROMPT]), "attention_mask": torch.ones(1, len(PROMPT), dtype=torch.long)}
    eager = same_as_plain(model, inputs, **call)
    compiled = same_as_plain(model, inputs, **call, optimize=True)
    assert emulated.runs and compiled.num_accepted_draft_tokens == eager.num_accepted_draft_tokens > 3
    reproduces_plain(model, (3, 2), **call, optimize=True)
    assert emulated.num_made == 2, "the target's and the head's"


def test_rows_that_take_the_place_of_others(pair, emulated):
    target, head = pair
    ends = {"eos_token_id": list(range(0, tiny.VOCAB, 4))}
    takes_lanes(target, tiny.texts(5), ends, batch_size=2, draft_model=head, optimize=True, num_draft_tokens=3)
    assert emulated.runs


def test_the_same_files_for_each_choice_of_states(pair, emulated):
    """What one kind of call has made, and the hooks it left, are in no other's way."""
    model, head = pair
    draft = tiny.noisy_copy(model)
    for _ in range(2):
        same_as_plain(model, tiny.prompts(2), draft_model=head)  # eagerly, by transformers' hooks
        same_as_plain(model, tiny.prompts(2), draft_model=head, optimize=True)
        same_as_plain(model, tiny.prompts(2), draft_model=draft, optimize=True)
    assert emulated.num_made == 2, "the target's, which give states between layers to whoever asks, and the head's"
    assert pool.kept(model).artifacts.keys() == {(), RECORDED}


def test_auto_moves_over(pair, emulated, monkeypatch):
    model, head = pair
    commands = []
    monkeypatch.setattr(artifacts.subprocess, "Popen", lambda command, **kwargs: commands.append(command))
    same_as_plain(model, tiny.prompts(2), draft_model=head, optimize="auto")
    assert len(commands) == 1 and not emulated.runs
    artifacts.make(model, recorded=RECORDED)
    same_as_plain(model, tiny.prompts(2), draft_model=head, optimize="auto")
    assert emulated.runs


@pytest.mark.skipif(packing.packing_unsupported_reason(tiny.llama()) is not None, reason="no packed products here")
def test_on_packed_weights(pair, emulated, monkeypatch):
    """And eagerly, once somebody has looked at one in the middle of a call."""
    model, head = pair
    run_as(monkeypatch, packs=True, compile=True)
    hs.attach(model, head)
    call = {**tiny.prompts(2), "do_sample": False, "pad_token_id": 0, "max_new_tokens": 12}
    expected = model.generate(**call, draft_model=None)

    class Looks:
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] > 14:
                model.lm_head.weight.sum()
            return scores

    assert model.generate(**call).tolist() == expected.tolist() and emulated.runs
    num_runs = len(emulated.runs)
    assert model.generate(**call, logits_processor=[Looks()]).tolist() == expected.tolist()
    assert num_runs < len(emulated.runs) < 2 * num_runs
    hs.detach(model)


@pytest.mark.parametrize("recorded", [(0, 2, -1), (1,)])
def test_what_is_exported_gives_them_at_all_sizes(recorded):
    """The graph alone, without a compiler."""
    model = tiny.llama()
    module = traced.Pass(model, recorded)
    artifacts.install_capturing_hooks(model)
    program = exported.export(module)
    with torch.no_grad():
        for num_rows, num_columns, seen in ((2, 4, 9), (5, 2, 60), (2, attention.WIDEST + 20, 0)):
            inputs, others = (module.sample(num_rows, num_columns, seen) for _ in range(2))
            found, expected = program.module()(*inputs), module(*others)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            written, expected = module.written(inputs)[-1], module.written(others)[-1]
            assert written.shape == (num_rows, num_columns, len(recorded) * model.config.hidden_size)
            torch.testing.assert_close(written, expected, rtol=1e-4, atol=1e-4)
            assert bool(written.any(-1)[0].all())


def test_states_are_held_to_the_models():
    module = traced.Pass(tiny.llama(), (1,))
    artifacts.install_capturing_hooks(module.model)

    def run(inputs):
        outputs = module(*inputs)
        inputs[9].mul_(1.01)
        return outputs

    with torch.no_grad(), pytest.raises(exported.Differs):
        exported.check(run, module)


@pytest.mark.slow
def test_with_the_compiler_itself(pair, tmp_path, monkeypatch):
    monkeypatch.setenv(artifacts.FOLDER, str(tmp_path))
    pool._kept.clear()
    model, head = pair
    for num_rows in (1, 3):
        same_as_plain(model, tiny.prompts(num_rows), draft_model=head, optimize=True)
    reproduces_plain(model, (3, 2), draft_model=head, optimize=True)
    assert {*tmp_path.glob("*.pt2")} == {*artifacts.files_of(model, RECORDED).paths, artifacts.path_of(head)}
    assert pool.kept(model).artifacts.keys() == {RECORDED}
