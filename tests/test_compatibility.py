"""`hf_speculative.check` and the command: which path, which vocabulary strategy, and the proof."""

import json

import pytest
import torch
from typer.testing import CliRunner

import hf_speculative as hs
from hf_speculative.cli import app
from hf_speculative.models import probe
from tests.architectures.check import build
from tests.support import tiny, tongues


@pytest.mark.parametrize(
    ("model_type", "path"),
    [("llama", "ragged"), ("gpt2", "ragged"), ("bloom", "universal"), ("qwen3_next", "universal")],
)
def test_the_path_and_its_proof(model_type, path):
    model = build("causal", model_type)
    answer = hs.check(model, tiny.noisy_copy(model))
    assert answer and answer.target.path == answer.draft.path == path
    assert (answer.target.why is None) == (path == "ragged")
    assert answer.target.deviation < 1e-3


def test_encoder_decoder_and_whisper():
    model = build("seq2seq", "t5")
    assert hs.check(model, model).target.path == "universal"
    whisper = build("speech", "whisper")
    with pytest.raises(ValueError, match=r"reads `input_features`: pass an example"):
        hs.check(whisper)
    config = whisper.config
    features = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    assert hs.check(whisper, whisper, input_features=features)


def test_what_does_not_work_says_why():
    mamba = build("causal", "mamba")
    answer = hs.check(mamba)
    assert not answer and answer.target.path is None and "recurrent state" in answer.reason
    answer = hs.check(tiny.llama(), mamba)
    assert not answer and "`draft_model`: MambaForCausalLM" in answer.reason and "use another draft" in answer.reason


@pytest.mark.parametrize(
    ("model_type", "comparison"), [("llama", "_deviation_of_ragged"), ("bloom", "_deviation_from_steps")]
)
def test_wrong_logits_are_found(model_type, comparison, monkeypatch):
    """Compared also where the tests cover the type."""
    model = build("causal", model_type)
    monkeypatch.setattr(probe, comparison, lambda *args: 0.3)
    answer = hs.check(model)
    assert not answer and "logits change" in answer.reason and answer.target.deviation == 0.3


@pytest.mark.parametrize(("do_sample", "strategy"), [(False, "strings"), (True, "intersection")])
def test_vocabularies(do_sample, strategy):
    letters = "".join(map(chr, range(0x61, 0x7B))) + " .,ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    ours, theirs = tongues.characters(letters), tongues.characters(letters[25::-1] + " !?")
    model = tiny.llama(vocab_size=len(ours))
    answer = hs.check(model, tiny.llama(vocab_size=len(theirs)), ours, theirs, do_sample=do_sample)
    assert answer and answer.vocabulary.strategy == strategy
    assert hs.check(model, model, ours, ours).vocabulary.strategy == "same"


def test_the_command():
    result = CliRunner().invoke(app, ["check", "--json"])
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["is_compatible"] and answer["vocabulary"]["strategy"] == "same"
    shown = CliRunner().invoke(app, ["check"]).stdout
    assert "ragged: each row" in shown and "Vocabularies: both" in shown and "compatible" in shown
    result = CliRunner().invoke(app, ["check", "--dtype", "int3"])
    assert result.exit_code == 2 and "int3" in result.stderr


def test_the_command_exits_with_1_where_a_pair_does_not_work(tmp_path):
    target, _, tokenizer = hs.embedded_pair()
    mamba = build("causal", "mamba")
    for name, model in (("target", target), ("draft", mamba)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "target"), str(tmp_path / "draft")])
    assert result.exit_code == 1 and "not compatible" in result.stdout


def test_the_command_says_why_a_path_is_taken(tmp_path):
    build("causal", "bloom").save_pretrained(tmp_path)
    hs.embedded_pair()[2].save_pretrained(tmp_path)
    shown = CliRunner().invoke(app, ["check", str(tmp_path), str(tmp_path)], env={"COLUMNS": "200"}).stdout
    assert "Why the target is not on the ragged path: it takes positions from its cache's length" in shown


def test_why_passes_run_eagerly():
    assert hs.check(tiny.llama()).target.eager is None
    assert "universal path" in hs.check(build("causal", "bloom")).target.eager


def test_who_takes_chains_only(monkeypatch):
    assert hs.check(tiny.llama()).target.chains is None
    assert "universal path" in hs.check(build("causal", "bloom")).target.chains
    monkeypatch.setattr(probe, "TESTED_TYPES", frozenset())
    monkeypatch.setattr(probe, "_deviation_of_trees", lambda model: 0.3)
    assert "branches" in hs.check(tiny.llama()).target.chains
