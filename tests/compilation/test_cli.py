"""`hf-speculative compile`, with an emulated compiler."""

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

import hf_speculative as hs
from hf_speculative.distillation.eagle3_student import layers_read, new_head
from hf_speculative.embedded import FOLDER
from hf_speculative.heads import load_head, write_head
from hf_speculative.models import artifacts
from tests.support import tiny
from tests.support.command import run_command
from tests.support.execution import run_as

CALL = tiny.prompts(1) | {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}


@pytest.fixture
def saved(tmp_path):
    """Folders of a target and a draft, with the embedded pair's tokenizer."""
    target = tiny.llama()
    paths = tmp_path / "target", tmp_path / "draft"
    for model, path in zip((target, tiny.noisy_copy(target)), paths, strict=True):
        model.save_pretrained(path)
        for file in (FOLDER / "target").glob("token*"):
            (path / file.name).symlink_to(file)
    return list(map(str, paths))


def run(saved, *options):
    result = run_command("compile", saved[0], "--draft-model", saved[1], *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def joined(files):
    return ", ".join(map(str, files.modules))


def test_what_it_makes_is_what_a_call_takes(saved, emulated, monkeypatch):
    """By the kernel that `attach` uses."""
    text = run(saved)
    assert text.count("made in") == 1, "one file serves both"
    made = run(saved).splitlines()
    assert [line.partition(":")[0] for line in made] == ["target", "draft"]
    assert all("was there already" in line for line in made)
    run_as(monkeypatch, has_kernel=True, compile=True)
    model = hs.attach(tiny.llama(), tiny.noisy_copy(tiny.llama()))
    assert made[0].endswith(f": {joined(artifacts.files_of(model))}")
    assert model.generate(**CALL).tolist() == tiny.llama().generate(**CALL).tolist()
    assert emulated.num_made == 1 and emulated.runs


def test_a_draft_beside_methods_is_compiled_too(saved, emulated):
    made = run([saved[0], f"{saved[1]}+suffix"]).splitlines()
    assert [line.partition(":")[0] for line in made] == ["target", "draft"]


def test_what_no_call_would_take_is_refused(saved, emulated, monkeypatch):
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]}
    GPTNeoForCausalLM(GPTNeoConfig(**tiny.COMMON, **sizes)).save_pretrained(saved[1])
    result = run_command("compile", saved[1])
    assert result.exit_code == 2 and "the passes of the target cannot be compiled: it" in result.output
    assert not emulated.num_made

    def fail(*args):
        raise artifacts.CannotCompile("it does not read a prompt")

    monkeypatch.setattr(artifacts, "files_of", fail)
    result = run_command("compile", saved[0])
    assert result.exit_code == 2 and "cannot be compiled: it does not read a prompt" in result.output


def test_for_a_head_the_target_gives_states(saved, emulated, tmp_path, monkeypatch):
    target = tiny.llama()
    head = new_head(target, torch.ones(tiny.VOCAB), tiny.VOCAB).eval()
    write_head(head, tmp_path / "head", "speculators")
    made = run([saved[0], str(tmp_path / "head")]).splitlines()
    recorded = layers_read(target.config.num_hidden_layers)
    loaded = load_head(tmp_path / "head")
    run_as(monkeypatch, has_kernel=True, compile=True)
    hs.attach(target, loaded)
    for line, role, one in zip(made, ("target", "head"), ((target, recorded), (loaded, ())), strict=True):
        assert line.startswith(f"{role}: made in") and line.endswith(f": {joined(artifacts.files_of(*one))}")
    target.generate(**CALL)
    assert emulated.num_made == 2 and emulated.runs
