"""Peers in the bench: another package's texts are compared with plain decoding's, and a missing one is named."""

import json
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaForCausalLM

from hf_speculative import benchmark
from hf_speculative.benchmark import Method, methods, peers, wording
from hf_speculative.benchmark.peers import gguf_file, llama_cpp, openvino
from tests.support import tiny


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
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None if name == "gguf" else name)
    with pytest.raises(ValueError, match=r"'llama-cpp' cannot be measured: it needs gguf: pip install"):
        methods.chosen_methods(["llama-cpp"])


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
    monkeypatch.setattr(methods, "missing_reason", lambda package: None)
    monkeypatch.setattr(openvino, "_exported", lambda pair: SimpleNamespace(path=tmp_path))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_the_file_for_llama_cpp_holds_the_model(target, tmp_path, tied, dtype):
    """As transformers reads such files."""
    config = type(target.config)(**target.config.to_dict() | {"tie_word_embeddings": tied})
    model = LlamaForCausalLM(config).to(dtype).eval()
    gguf_file.write(model, tmp_path / "model.gguf")
    found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    expected = LlamaForCausalLM(config).eval()
    expected.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    ids = torch.randint(config.vocab_size, (2, 9))
    torch.testing.assert_close(found(ids).logits, expected(ids).logits)


def test_no_file_for_llama_cpp_of_another_type(tmp_path):
    model = AutoModelForCausalLM.from_config(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=10))
    with pytest.raises(ValueError, match="Llama-type models, not with GPT2LMHeadModel"):
        gguf_file.write(model, tmp_path / "model.gguf")
    stretched = tiny.build("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(ValueError, match="not with those of type 'linear'"):
        gguf_file.write(stretched, tmp_path / "model.gguf")


@pytest.mark.parametrize("name", ["llama-cpp", "llama-cpp-plain"])
def test_llama_cpp_is_asked_for_the_same_work(target, draft, monkeypatch, name):
    made, asked = [], []

    class Server:
        def __init__(self, settings):
            made.append(settings)

        def handle_completions(self, call):
            asked.append(call)
            choices = []
            for index, ids in enumerate(call["prompt"]):
                full = target.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=call["n_predict"])
                choices.append(
                    {"index": index, "text": "".join(map(gguf_file.token_text, full[0, len(ids) :].tolist()))}
                )
            return {"choices": choices[::-1]}

    def nested():
        cpu = SimpleNamespace(cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())
        return SimpleNamespace(model=SimpleNamespace(), mparams=SimpleNamespace(), **vars(cpu))

    def params():
        return SimpleNamespace(speculative=SimpleNamespace(draft=nested()), **vars(nested()))

    package = SimpleNamespace(
        Server=Server,
        CommonParams=params,
        ggml_type=SimpleNamespace(GGML_TYPE_F32=0),
        common_speculative_type=SimpleNamespace(COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE=1),
    )
    monkeypatch.setitem(sys.modules, "xllamacpp", package)
    monkeypatch.setattr(llama_cpp, "Remote", lambda asked: llama_cpp.made(asked).handle_completions)  # in this process
    monkeypatch.setattr(methods, "missing_reason", lambda package: None)
    cells = benchmark.sweep(batch=[2], num_draft_tokens=[2, 3], context=[8], acceptance=[None], temperature=[0.0])
    report = benchmark.run(benchmark.Pair(target, draft, "tiny"), cells, methods=[name], num_new_tokens=8, repeats=2)
    assert [cell.methods[name].num_equal_rows for cell in report.cells] == [2, 2]
    assert all(not call["cache_prompt"] and call["ignore_eos"] for call in asked), "repeats read the prompt, too"
    threads = torch.get_num_threads()
    assert {one.cpuparams.n_threads for one in made} == {threads} and made[0].n_parallel == 2
    if name == "llama-cpp":
        assert [one.speculative.draft.n_max for one in made] == [2, 3]
        assert made[0].speculative.draft.cpuparams.n_threads == threads
    else:
        assert not hasattr(made[0].speculative, "types")


def test_what_was_made_of_other_weights_is_not_measured(monkeypatch):
    """A shape's weights change from one acceptance to the next; a peer has to get the new ones."""
    made = []
    monkeypatch.setattr(llama_cpp, "_written", lambda pair: made.append(pair.calibrations.copy()))
    monkeypatch.setattr(llama_cpp, "_server", lambda *given: answer)

    def answer(call):
        return {"choices": [{"index": 0, "text": "1," * call["n_predict"]}]}

    monkeypatch.setattr(methods, "missing_reason", lambda package: None)
    pair = benchmark.CalibratedPair("tiny", dtype=torch.float32, num_rows=2)
    cells = benchmark.sweep(batch=[1], num_draft_tokens=[2], context=[8], acceptance=[0.5, 0.9], temperature=[0.0])
    benchmark.run(pair, cells, methods=["llama-cpp"], num_new_tokens=8, repeats=1)
    assert [len(calibrations) for calibrations in made] == [1, 2]


@pytest.mark.slow
@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="not among the test packages")
def test_llama_cpp_itself(tmp_path):
    command = [
        sys.executable,
        "-m",
        "hf_speculative",
        "bench",
        "--methods",
        "llama-cpp,llama-cpp-plain",
        "--batch",
        "1,3",
    ]
    command += ["--repeats", "1", "--new-tokens", "24", "--json", str(tmp_path / "report.json")]
    subprocess.run(command, check=True)
    for cell in json.loads((tmp_path / "report.json").read_text())["cells"]:
        for name in ("llama-cpp", "llama-cpp-plain"):
            assert cell["methods"][name]["num_equal_rows"] == cell["cell"]["batch"]
