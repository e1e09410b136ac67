"""Compiled passes of layers that cache something else than keys and values of one shape: states, others' keys, nothing."""

import gc
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.hf_compat.compiled import CompiledPackage
from hf_speculative.models import artifacts, described, execution, exported, traced
from hf_speculative.models.execution import Execution
from hf_speculative.models.written import Written
from tests.architectures.check import build
from tests.support import tiny
from tests.support.cases import RECURRENT, a_third
from tests.support.plain import agrees, takes_lanes
from tests.support.rounds import check_rounds

SETTINGS = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 16}


@pytest.mark.parametrize("kind", ["deepseek_v3", "gemma4_text", "gemma3n_text", "nemotron_h"])
def test_layers_that_cache_otherwise(kind, emulated):
    """Keys of other widths than values, of other widths than those of other layers, of another layer, or none at all."""
    model = build("causal", kind)
    draft, inputs = tiny.noisy_copy(model, 0.05), tiny.prompts(3, width=12)
    agrees(model, inputs | SETTINGS, draft_model=draft, num_draft_tokens=3, optimize=True)
    assert emulated.num_made == 1 and (3, 4) in emulated.runs


@pytest.mark.parametrize("kind", a_third(RECURRENT))
def test_recurrent_layers(kind, emulated):
    """Targets and drafts, greedy chains and sampled ones; rows that leave, that start in a lane, and short ones."""
    model = build("causal", kind)
    draft = tiny.noisy_copy(model, 0.05)
    for num_rows, options in ((3, {}), (1, {}), (3, {"do_sample": True, "top_k": 20})):
        inputs = tiny.prompts(num_rows, width=12) | SETTINGS | options
        agrees(model, inputs, draft_model=draft, num_draft_tokens=3, optimize=True)
    assert {columns for _, columns in emulated.runs} >= {1, 2, 4} and emulated.num_made == 1
    emulated.runs.clear()
    takes_lanes(model, tiny.texts(7), batch_size=2, draft_model=draft, optimize=True, num_draft_tokens=3)
    assert emulated.runs


def test_states_of_recurrent_layers_are_not_written_over(emulated):
    """A round goes on from the state after any column of the last one, in the same buffers."""
    model = build("causal", "granitemoehybrid")
    assert check_rounds(model, execution=Execution(compile=True)).num_forwards < 30 and emulated.runs


def test_states_of_earlier_rounds_are_let_go_of_at_once(emulated):
    """Each takes as much memory as the caches of a layer: none waits for the garbage collector."""
    model = build("causal", "qwen3_5_text")
    gc.collect()
    gc.disable()
    try:
        cached = check_rounds(model, execution=Execution(compile=True))
        assert emulated.runs and sum(type(one) is Written for one in gc.get_objects()) == 1
    finally:
        gc.enable()
    assert cached.num_forwards > 5


def test_bits_that_are_fixed_take_eager_passes(emulated):
    """Compiled recurrences round by where a pass begins."""
    model = build("causal", "qwen3_5_text")
    call = tiny.prompts(2, width=12) | SETTINGS | {"draft_model": tiny.noisy_copy(model, 0.05)}
    one, other = (
        hs.generate(model, **call, **as_keywords({"reproducible": "bitwise", "optimize": optimize}))
        for optimize in (False, True)
    )
    assert one.tolist() == other.tolist()


def test_half_precision(emulated):
    """In which state spaces have states and inputs of other dtypes."""
    model = build("causal", "granitemoehybrid").bfloat16()
    hs.generate(model, **tiny.prompts(3, width=12), **SETTINGS, draft_model=model, **as_keywords({"optimize": True}))
    assert emulated.runs and emulated.num_made == 1


@pytest.mark.slow
def test_a_compiled_layer_in_half_precision_whose_states_are_not():
    """They are as far apart as what they are made of."""
    model = build("causal", "granitemoehybrid").bfloat16()
    assert artifacts.files_of(model).parts[1].layout.states[-1].dtype == torch.float32
    assert len({*artifacts.make(model)}) > 1  # its pieces


def test_a_model_that_reads_no_prompt_of_ids_alone(emulated, monkeypatch):
    model = tiny.llama()
    monkeypatch.setattr(traced, "layouts_of", Mock(side_effect=ValueError("give an image")))
    assert "give an image" in execution.described_passes(model) and artifacts.find(model) is None
    with pytest.raises(artifacts.CannotCompile, match=r"ids alone .ValueError: give an image"):
        artifacts.make(model)


@pytest.mark.slow
def test_weights_of_a_few_numbers_are_not_written_into_the_file(tmp_path):
    """Layers share it; torch makes constants of up to eight numbers, such as the decays of as many heads."""
    models = (build("causal", "qwen3_5_text", seed=seed) for seed in (0, 1))
    one, other = (artifacts.files_of(model).parts[1] for model in models)
    assert len(one.layer.linear_attn.A_log) <= 8 and not one.layer.linear_attn.A_log.equal(other.layer.linear_attn.A_log)
    exported.compile_to(tmp_path / "layer.pt2", one)
    with closing(CompiledPackage(tmp_path / "layer.pt2")) as package:
        compiled = exported.load(package, other)
    inputs, others = ([tensor.clone() for tensor in other.samples[0]] for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs)[0], other(*others), rtol=1e-3, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["qwen3_5_text", "jamba", "gemma4_text", "bloom"])
def test_names_of_files_depend_on_all_code_of_ours_that_runs(kind):
    """Else a file of an older version would be used."""
    whole, ran = artifacts.files_of(build("causal", kind)).whole, set()
    inputs = whole.sample(3, 5, 20)
    sys.setprofile(lambda frame, *_: ran.add(Path(frame.f_code.co_filename)))
    try:
        whole(*inputs)
    finally:
        sys.setprofile(None)
    own = {path.stem for path in ran if path.parent == Path(traced.__file__).parent}
    assert "traced_cache" in own <= {*described.OWN}
