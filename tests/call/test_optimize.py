"""`optimize`: what it means on a device, when passes are compiled in the background, and how to switch that off."""

import logging

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.configuration import execution_of
from hf_speculative.models import artifacts, execution, native
from hf_speculative.models.execution import EAGER, Execution
from hf_speculative.models.linears import num_by_kernel
from tests.support import tiny

CALL = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("optimize", "device", "expected"),
    [
        ("auto", CPU, Execution(has_kernel=True, compile="auto")),
        (True, CPU, Execution(has_kernel=True, compile=True)),
        ("auto", CUDA, Execution(captures=True)),
        (True, CUDA, Execution(captures=True)),
        *((value, device, EAGER) for value in (False, None) for device in (CPU, CUDA)),
        ("auto", torch.device("mps"), EAGER),
    ],
)
def test_what_it_means(optimize, device, expected, monkeypatch):
    monkeypatch.delenv(artifacts.FOLDER)
    assert execution_of(optimize, device) == expected
    monkeypatch.setenv(artifacts.FOLDER, artifacts.OFF)
    assert execution_of(optimize, device) == (EAGER if optimize == "auto" else expected)


@pytest.mark.skipif(not native.has_kernel(), reason="the kernel cannot be built on this machine")
def test_attach_uses_the_kernel_unless_told_otherwise(emulated):
    model, draft = tiny.llama(), tiny.noisy_copy(tiny.llama())
    expected = model.generate(**tiny.prompts(2), **CALL).tolist()
    assert num_by_kernel(hs.attach(model, draft)) == num_by_kernel(draft) == 15
    assert model.generate(**tiny.prompts(2), **CALL).tolist() == expected
    assert num_by_kernel(hs.attach(model, draft, optimize=False)) == num_by_kernel(draft) == 0
    assert num_by_kernel(hs.attach(model, draft, config=hs.SpeculativeConfig(optimize=False))) == 0


def test_passes_are_compiled_once_a_model_has_decoded_for_a_while(emulated, monkeypatch, caplog):
    model = hs.attach(tiny.llama())
    monkeypatch.setattr(execution, "ENOUGH_SECONDS", 1e6)
    model.generate(**tiny.prompts(1), **CALL)
    model.generate(**tiny.prompts(1), **CALL)
    assert not emulated.started, "a short script pays nothing"
    monkeypatch.setattr(execution, "ENOUGH_SECONDS", 1e-6)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            model.generate(**tiny.prompts(1), **CALL)
    assert len(emulated.started) == 1, "one process"
    (message,) = [record.getMessage() for record in caplog.records]
    assert "`optimize=False` or HF_SPECULATIVE_PASSES=off" in message


def test_not_on_one_core_nor_where_it_is_off(monkeypatch):
    monkeypatch.setattr(artifacts.os, "cpu_count", lambda: 1)
    assert artifacts._has_no_power_to_spare()
    monkeypatch.setattr(artifacts.subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a process"))
    monkeypatch.setattr(execution, "ENOUGH_SECONDS", 0.0)
    model = hs.attach(tiny.llama())
    for _ in range(2):
        model.generate(**tiny.prompts(1), **CALL)
    assert num_by_kernel(model) == 0


def test_a_call_may_run_eagerly(emulated):
    model = hs.attach(tiny.llama(), tiny.noisy_copy(tiny.llama()), optimize=True)
    model.generate(**tiny.prompts(1), **CALL, speculative_config=hs.SpeculativeConfig(optimize=False))
    assert not emulated.runs
    model.generate(**tiny.prompts(1), **CALL)
    assert emulated.runs
