"""Peers in the bench: another package's texts are compared with plain decoding's, and a missing one is named."""

import sys
from types import SimpleNamespace

import pytest
import torch

from hf_speculative import benchmark
from hf_speculative.benchmark import Method, methods, peers, wording


def peer(generate):
    return Method("peer", generate, "another package", package="torch")


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_its_tokens_are_compared(target, draft, num_wrong):
    def generate(pair, cell, call):
        found = pair.target.generate(**call)
        found[:num_wrong, -1] += 1
        return found

    cells = benchmark.sweep(batch=[2], num_draft_tokens=[2], context=[8], acceptance=[None], temperature=[0.0])
    pair = benchmark.Pair(target, draft, "tiny")
    report = benchmark.run(pair, cells, methods=[peer(generate)], num_new_tokens=8, repeats=1)
    assert report.cells[0].methods["peer"].num_equal_rows == 2 - num_wrong
    note = f"peer: the tokens of {2 - num_wrong} of 2 rows are plain decoding's."
    assert note in wording.notes(report.cells[0])
    assert report.cells[0].methods["plain"].num_equal_rows is None


def test_one_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'economize' cannot be measured: it needs economize: pip install"):
        methods.chosen_methods(["economize"])


@pytest.mark.parametrize("name", ["openvino", "openvino-plain"])
def test_openvino_is_asked_for_the_same_work(target, draft, monkeypatch, tmp_path, name):
    made, asked = [], []

    class Pipeline:
        def __init__(self, folder, device, **settings):
            made.append((folder, device, settings))

        def generate(self, inputs, config):
            asked.append(config)
            full = target.generate(torch.tensor(inputs[0]), do_sample=False, max_new_tokens=config["max_new_tokens"])
            return SimpleNamespace(tokens=full[:, len(inputs[0][0]) :].tolist())

    package = SimpleNamespace(
        LLMPipeline=Pipeline,
        GenerationConfig=dict,
        TokenizedInputs=lambda ids, mask: (ids, mask),
        draft_model=lambda folder, device, **settings: (folder, settings),
        SchedulerConfig=lambda: SimpleNamespace(enable_prefix_caching=True),
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", package)
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=lambda values: values))
    monkeypatch.setattr(methods.peers, "why_missing", lambda package: None)
    monkeypatch.setattr(peers, "_exported", lambda pair: tmp_path)
    cells = benchmark.sweep(batch=[1], num_draft_tokens=[2], context=[8], acceptance=[None], temperature=[0.0])
    report = benchmark.run(benchmark.Pair(target, draft, "tiny"), cells, methods=[name], num_new_tokens=8, repeats=2)
    assert report.cells[0].methods[name].num_equal_rows == 1
    ((folder, device, settings),) = made
    assert (folder, device) == (str(tmp_path / "target"), "CPU") and settings["INFERENCE_PRECISION_HINT"] == "f32"
    assert not settings["scheduler_config"].enable_prefix_caching, "repeats read the prompt, too"
    assert ("draft_model" in settings) == (name == "openvino") == ("num_assistant_tokens" in asked[0])


def test_openvino_needs_another_python_to_export(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv(peers.EXPORTER, raising=False)
    with pytest.raises(ValueError, match=f"optimum-intel.*export {peers.EXPORTER}="):
        methods.chosen_methods(["openvino"])
