"""Settings for vLLM that follow from an evaluation."""

import json
import shlex

import pytest

import hf_speculative as hs
from hf_speculative.hub.vllm import export_vllm


def test_the_line_for_vllm(code):
    settings = export_vllm(code, draft_model="draft", target_name="org/target", draft_name="org/draft")
    greedy = [s for s in code.settings if s.temperature == 0 and s.num_draft_tokens is not None]
    best = max(greedy, key=lambda setting: code.totals(setting).speedup.median)
    assert settings.config == {
        "method": "draft_model",
        "model": "org/draft",
        "num_speculative_tokens": best.num_draft_tokens,
    }
    assert shlex.split(settings.command)[:4] == ["vllm", "serve", "org/target", "--speculative-config"]
    assert json.loads(shlex.split(settings.command)[4]) == settings.config
    assert "transformers" in settings.notes[0]


@pytest.mark.parametrize("best", ["draft, 2 tokens, greedy", "ngram, up to 3 tokens, greedy"])
def test_what_did_best_is_served(results, best):
    """Whether that is a draft or prompt lookup."""
    code = hs.Evaluation.load(results / "code.jsonl")
    for name, calls in code.calls.items():
        for call in calls.values():
            call.seconds *= 1 if name in (best, "plain, greedy") else 100
    settings = export_vllm(code)
    assert settings.figure.setting.name == best
    assert settings.config["method"] == ("draft_model" if best.startswith("draft") else "ngram")
    assert export_vllm(code, draft_model="draft").config["method"] == "draft_model"


@pytest.mark.parametrize(
    "method, fields",
    [
        ("eagle3", {}),
        ("peagle", {"method": "eagle3", "parallel_drafting": True}),
        ("dflash", {}),
        ("dspark", {}),
        ("mtp_head", {"method": "mtp"}),
    ],
)
def test_heads_are_named_as_there(results, method, fields):
    code = hs.Evaluation.load(results / "code.jsonl")
    code.header["draft_methods"]["draft"] = method
    config = export_vllm(code, draft_model="draft", draft_name="org/head").config
    assert config == {"method": method, "model": "org/head", "num_speculative_tokens": 2} | fields | {
        "num_speculative_tokens": config["num_speculative_tokens"]
    }


def test_methods_and_their_options_are_called_alike(pair):
    """And what vLLM does not have is left out, although it did as well."""
    target, _, tokenizer = pair
    options = {"options": {"suffix_decoding_max_tree_depth": 12}, "num_draft_tokens": [4]}
    found = hs.evaluate(
        target, ["auto", "suffix"], ["import os\n"], tokenizer=tokenizer, max_new_tokens=8, progress=False, **options
    )
    for calls in found.calls.values():
        for call in calls.values():
            call.seconds = float(call.num_target_passes)
    assert export_vllm(found).config == {
        "method": "suffix",
        "num_speculative_tokens": 4,
        "suffix_decoding_max_tree_depth": 12,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    }
    del found.calls["suffix, 4 tokens, suffix_decoding_max_tree_depth=12, greedy"]
    found.settings = [setting for setting in found.settings if "suffix, " not in setting.name]
    with pytest.raises(ValueError, match="and nothing like it was measured: auto, 4 tokens"):
        export_vllm(found)


@pytest.mark.parametrize("name", ["-rf", "--trust-remote-code"])
def test_a_name_is_no_option(code, name):
    settings = export_vllm(code, target_name=name, draft_name="-x")
    assert shlex.split(settings.command)[:4] == ["vllm", "serve", f"./{name}", "--speculative-config"]
    assert settings.target == name


def test_a_line_to_paste_hides_nothing(code):
    with pytest.raises(ValueError, match=r"'org/\\u202ename', has characters that cannot be seen: give `target_name=`"):
        export_vllm(code, target_name="org/\u202ename")


def test_a_draft_with_another_tokenizer(results):
    code = hs.Evaluation.load(results / "code.jsonl")
    code.header["draft_tokenizers"].append("draft")
    assert export_vllm(code, draft_model="draft").config["use_heterogeneous_vocab"] is True


def test_further_fields_and_temperature(code):
    settings = export_vllm(
        code, draft_model="draft", temperature=0.8, draft_tensor_parallel_size=1, num_speculative_tokens=7
    )
    assert settings.config["draft_tensor_parallel_size"] == 1 and settings.config["num_speculative_tokens"] == 7
    assert settings.figure.setting.temperature == 0.8 and "draft_sample_method" in settings.notes[-1]
    with pytest.raises(ValueError, match=r"`temperature=0.5`.*0.0, 0.8"):
        export_vllm(code, temperature=0.5)


def test_only_adaptive_lengths(results, tmp_path):
    """vLLM has no such thing: the error names what was measured and what to measure."""
    lines = (results / "chat.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    lengths = ("num_draft_tokens", "prompt_lookup_num_tokens")
    header["header"]["settings"] = [s for s in header["header"]["settings"] if not s.keys() & {*lengths}]
    names = [hs.Setting(**values).name for values in header["header"]["settings"]]
    calls = [line for line in lines[1:] if json.loads(line)["call"]["setting"] in names]
    (tmp_path / "adaptive.jsonl").write_text("\n".join([json.dumps(header), *calls]) + "\n")
    with pytest.raises(ValueError, match=r"draft, adaptive length, greedy.*num_draft_tokens=\[2, 4, 6\]"):
        export_vllm(tmp_path / "adaptive.jsonl")
