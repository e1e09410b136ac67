"""`hf_speculative.check`: which path, which vocabulary strategy, and the proof; and whether it is worth it."""

import copy
import json
import re

import pytest
import torch

import hf_speculative as hs
from hf_speculative.compatibility.fit import made_for, notes_on
from hf_speculative.models import execution, probe
from tests.architectures.check import build
from tests.support import tiny, tongues


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_next", "bloom", "gpt_neo", "zaya"])
def test_the_path_and_its_proof(model_type):
    model, path = build("causal", model_type), "universal" if model_type in ("gpt_neo", "zaya") else "ragged"
    found = hs.check(model, tiny.noisy_copy(model))
    assert found and found.target.path == found.draft.path == path
    assert (found.target.why is None) == (path == "ragged") and found.target.deviation < 1e-3


def test_how_passes_run_and_why_no_faster(monkeypatch):
    monkeypatch.delenv("HF_SPECULATIVE_PASSES", raising=False)
    found = {name: hs.check(build("causal", name)).target.passes for name in ("llama", "qwen3_next", "bloom", "gpt_neo")}
    assert re.fullmatch(r"eager until they are compiled, .*by `hf-speculative compile`", found["llama"])
    assert found["qwen3_next"] == found["bloom"] == found["llama"] and found["gpt_neo"] is None
    model = tiny.llama()
    monkeypatch.setattr(execution, "device_of", lambda model: torch.device("cuda", 0))
    assert execution.described_passes(model) == "captured as CUDA graphs"
    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_autocast_enabled", lambda kind: True)
        assert "eager, since it runs under autocast" in execution.described_passes(model)
    with monkeypatch.context() as patch:
        patch.setenv("HF_SPECULATIVE_PASSES", "off")
        assert execution.described_passes(model) == "eager, by HF_SPECULATIVE_PASSES=off"
    monkeypatch.setattr(execution, "failed_on", {torch.device("cuda", 0)})
    assert "where a capture failed" in execution.described_passes(model)
    monkeypatch.setattr(execution, "failed_on", set())
    model.model.layers[0].register_forward_hook(lambda module, args, output: None)
    assert "has hooks or functions of its user" in execution.described_passes(model)


def test_encoder_decoder_and_whisper():
    model = build("seq2seq", "t5")
    assert hs.check(model, model).target.path == "ragged"
    whisper = build("speech", "whisper")
    with pytest.raises(ValueError, match=r"reads `input_features`: pass an example"):
        hs.check(whisper)
    config = whisper.config
    features = torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    assert hs.check(whisper, whisper, input_features=features)


def test_what_does_not_work_says_why():
    rwkv = build("causal", "rwkv")
    found = hs.check(rwkv)
    assert not found and found.target.path is None and "recurrent state" in found.reason
    found = hs.check(tiny.llama(), rwkv)
    assert not found and "`draft_model`: RwkvForCausalLM" in found.reason and "use another draft" in found.reason


@pytest.mark.parametrize("model_type", ["llama", "bloom"])
def test_wrong_logits_are_found(model_type, monkeypatch):
    """Compared also where the tests cover the type."""
    model = build("causal", model_type)
    monkeypatch.setattr(probe, "_deviation_from_steps", lambda *args: 0.3)
    found = hs.check(model)
    assert not found and "logits change" in found.reason and found.target.deviation == 0.3


@pytest.mark.parametrize(("do_sample", "strategy"), [(False, "strings"), (True, "intersection")])
def test_vocabularies(do_sample, strategy):
    letters = "".join(map(chr, range(0x61, 0x7B))) + " .,ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    ours, theirs = tongues.characters(letters), tongues.characters(letters[25::-1] + " !?")
    model = tiny.llama(vocab_size=len(ours))
    found = hs.check(model, tiny.llama(vocab_size=len(theirs)), ours, theirs, do_sample=do_sample)
    assert found and found.vocabulary.strategy == strategy
    assert hs.check(model, model, ours, ours).vocabulary.strategy == "same"


def test_measuring_advises(target, twin):
    found = hs.check(target, twin, measure=True, prompts=[[5, 6, 7]], batch_sizes=[1], seconds=1, progress=False)
    assert found and found.advice.parameters == {"target": target.num_parameters(), "draft": twin.num_parameters()}
    evaluation = found.advice.evaluations[1]
    assert evaluation.settings[1].draft == "draft" and not evaluation.differences
    assert evaluation.totals(evaluation.settings[1]).num_identical == evaluation.header["num_rows"] > 0
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["is_compatible"] and values["target"]["path"] == "ragged" and "verdict" in values["advice"]
    (of_size,) = values["advice"]["evaluations"]
    assert of_size["batch_size"] == 1 and {"plain, greedy", "plain, T=1"} <= {t["setting"] for t in of_size["totals"]}


def test_a_draft_that_does_not_fit_is_left_out_of_the_advice(target):
    how = {"measure": True, "prompts": [[5, 6]], "batch_sizes": [1], "seconds": 1, "progress": False}
    found = hs.check(target, tiny.llama(vocab_size=5000), **how)
    assert not found and "5000 entries" in found.reason
    drafts = {setting.draft for setting in found.advice.evaluations[1].settings}
    assert drafts == {None}


def test_what_cannot_be_measured_is_refused(target):
    with pytest.raises(ValueError, match=r"`seconds=0` leaves no time"):
        hs.check(target, measure=True, seconds=0)
    for sizes in ([], [0], [1.5]):
        with pytest.raises(ValueError, match=r"`batch_sizes=.*one or more whole numbers"):
            hs.check(target, measure=True, batch_sizes=sizes)
    with pytest.raises(ValueError, match=r"give `tokenizer=`, or `prompts=`"):
        hs.check(target, measure=True)
    with pytest.raises(ValueError, match=r"`prompts=\[\]` leaves nothing"):
        hs.check(target, measure=True, prompts=[])
    with pytest.raises(ValueError, match=r"`input_features` was given"):
        hs.check(target, measure=True, input_features=torch.ones(1))


def test_the_target_that_a_head_was_made_for():
    target, draft = tiny.llama(), tiny.llama()
    draft.config = copy.deepcopy(draft.config)
    target.config.name_or_path = "Qwen/Qwen3-8B"
    assert made_for(draft) is None and notes_on(target, draft) == ()
    draft.config.speculators_config = {"verifier": {"name_or_path": "Qwen/Qwen3-4B"}}
    (note,) = notes_on(target, draft)
    assert "names Qwen/Qwen3-4B as the target it was made for, and this one is Qwen/Qwen3-8B" in note
    draft.config.speculators_config = {"verifier": {"name_or_path": "/models/qwen3-8b"}}
    assert notes_on(target, draft) == (), "a copy of it in a folder"
