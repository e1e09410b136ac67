"""A target's folder that names its draft, and the same through `custom_generate/` for people who attach nothing."""

import json
import re
import sys
from unittest.mock import Mock

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, T5Config, T5ForConditionalGeneration

import hf_speculative as hs
from hf_speculative.hub import pairing as pairing_module
from hf_speculative.hub.export import export_generate
from hf_speculative.hub.pairing import FILE_NAME, Pairing
from hf_speculative.verification import TokenVerification
from tests.support import tiny, tongues
from tests.support.plain import Collect


@pytest.fixture(scope="module")
def folder(target, draft, tmp_path_factory):
    """A target with its draft in the subfolder `draft`, three tokens a round."""
    path = tmp_path_factory.mktemp("pair")
    hs.save_pretrained(target, path, draft_model=draft, config=hs.SpeculativeConfig(num_draft_tokens=3))
    return path


@pytest.fixture
def inputs():
    return tiny.prompts(2) | {"max_new_tokens": 12, "do_sample": False}


@pytest.fixture(autouse=True, scope="module")
def own_module_cache(tmp_path_factory):
    """transformers copies a repository's code to a cache for modules, and imports it from there."""
    path = str(tmp_path_factory.mktemp("modules"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", path)
        patch.setattr(sys, "path", [path, *sys.path])
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        del sys.modules[name]


def write(folder, **values):
    (folder / FILE_NAME).write_text(json.dumps(values))


def test_the_pair_comes_back_attached(folder, target, inputs):
    model = hs.from_pretrained(folder)
    assert not model.training and not model.generate.draft_model.training
    with hs.record() as stats:
        output = model.generate(**inputs)
    assert torch.equal(output, target.generate(**inputs))
    assert stats.num_accepted_draft_tokens > 0 and max(stats.acceptance_histogram[3:]) > 0
    assert len(stats.acceptance_histogram) == 4, "num_draft_tokens=3 came back"


def test_what_is_attached_is_what_is_saved(target, draft, tmp_path):
    model = hs.attach(tiny.copy.deepcopy(target), draft, config=hs.SpeculativeConfig(reproducible=True))
    hs.save_pretrained(model, tmp_path)
    written = {"draft_model": "./draft", "reproducible": True, "hf_speculative_version": hs.__version__}
    assert json.loads((tmp_path / FILE_NAME).read_text()) == written
    loaded = hs.from_pretrained(tmp_path, speculative_config=hs.SpeculativeConfig(num_draft_tokens=2))
    assert (loaded.generate.config.reproducible, loaded.generate.config.num_draft_tokens) == (True, 2)


def test_a_method_is_saved_in_place_of_a_draft(target, draft, tmp_path):
    settings = {"suffix_decoding_max_cached_requests": 5}
    model = hs.attach(tiny.copy.deepcopy(target), "suffix", config=hs.SpeculativeConfig(**settings))
    hs.save_pretrained(model, tmp_path)
    written = settings | {"draft_model": "suffix", "hf_speculative_version": hs.__version__}
    assert json.loads((tmp_path / FILE_NAME).read_text()) == written
    loaded = hs.from_pretrained(tmp_path)
    assert loaded.generate.draft_model == "suffix"
    assert loaded.generate.config == hs.SpeculativeConfig(**settings, optimize="auto")
    hs.save_pretrained(model, tmp_path, draft_model=[draft, "suffix"])
    assert json.loads((tmp_path / FILE_NAME).read_text())["draft_model"] == "./draft+suffix"
    own, methods = hs.from_pretrained(tmp_path).generate.draft_model
    assert own.config.hidden_size == draft.config.hidden_size and methods == "suffix"
    hs.save_pretrained(model, tmp_path, draft_model=draft)
    saved = Pairing.load(str(tmp_path))
    assert saved == Pairing(draft_model="./draft", hf_speculative_version=saved.hf_speculative_version)
    with pytest.raises(ValueError, match=r"`corpus`: .* cannot hold that"):
        hs.save_pretrained(target, tmp_path, draft_model="suffix", config=hs.SpeculativeConfig(corpus="/some/file"))
    write(tmp_path, draft_model="suffix", corpus="/some/file")
    with pytest.raises(ValueError, match="unknown key 'corpus'"):
        hs.from_pretrained(tmp_path)


def test_dtype_goes_to_both_and_draft_kwargs_to_the_draft(folder):
    model = hs.from_pretrained(folder, dtype=torch.bfloat16)
    assert (model.dtype, model.generate.draft_model.dtype) == (torch.bfloat16, torch.bfloat16)
    model = hs.from_pretrained(folder, draft_kwargs={"dtype": torch.bfloat16})
    assert (model.dtype, model.generate.draft_model.dtype) == (torch.float32, torch.bfloat16)


def test_a_draft_that_is_only_named(target, draft, tmp_path, inputs):
    draft.save_pretrained(tmp_path / "big" / "small")
    hs.save_pretrained(target, tmp_path / "big", draft_model=str(tmp_path / "big" / "small"))
    assert not (tmp_path / "big" / "draft").exists()
    assert json.loads((tmp_path / "big" / FILE_NAME).read_text())["draft_model"] == "./small"
    assert torch.equal(hs.from_pretrained(tmp_path / "big").generate(**inputs), target.generate(**inputs))
    with pytest.raises(ValueError, match="is a folder elsewhere"):
        hs.save_pretrained(target, tmp_path / "other", draft_model=str(tmp_path / "big" / "small"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "source",
    ["../evil", "./../evil", "repo/../evil", "evil", "./a/..", ".\\..\\evil", "/etc/passwd", "", "https://e.vil/x"],
)
@pytest.mark.parametrize("key", ["draft_model", "tokenizer", "draft_tokenizer"])
def test_a_file_names_its_own_folder_or_the_hub(tmp_path, monkeypatch, source, key):
    for folder in ("repo", "evil"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "repo", **{"draft_model": "./draft", key: source})
    with pytest.raises(ValueError, match=rf"`{key}={re.escape(repr(source))}` is neither a subfolder"):
        hs.from_pretrained("repo")


def test_nothing_else_of_this_machine_is_loaded_in_its_place(target, draft, tmp_path, monkeypatch):
    hs.save_pretrained(target, tmp_path / "repo", draft_model=draft)
    draft.save_pretrained(tmp_path / "org" / "evil")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repo" / "link").symlink_to(tmp_path / "org" / "evil")
    write(tmp_path / "repo", draft_model="./link")
    with pytest.raises(ValueError, match=r"names \./link, a link that leads out of it"):
        hs.from_pretrained("repo")
    write(tmp_path / "repo", draft_model="org/evil")
    with pytest.raises(ValueError, match=r"names org/evil on the Hub, and the working directory has something"):
        hs.from_pretrained("repo")
    export_generate(tmp_path / "repo")
    model = AutoModelForCausalLM.from_pretrained("repo", trust_remote_code=True)
    with pytest.raises(ValueError, match="the default draft is org/evil on the Hub, and the working directory has"):
        model.generate(**tiny.prompts(1), max_new_tokens=2)


def test_encoder_and_decoder(tmp_path):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 1, "decoder_start_token_id": 0}
    target = T5ForConditionalGeneration(T5Config(vocab_size=tiny.VOCAB, **sizes)).eval()
    hs.save_pretrained(target, tmp_path, draft_model=tiny.noisy_copy(target))
    model = hs.from_pretrained(tmp_path)
    assert type(model) is type(model.generate.draft_model) is T5ForConditionalGeneration
    inputs = tiny.prompts(2) | {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(**inputs), target.generate(**inputs))


def test_tokenizers_where_vocabularies_differ(tmp_path):
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    options = {"draft_model": tongues.moved(draft, tokenizer, other), "tokenizer": tokenizer, "draft_tokenizer": other}
    config = hs.SpeculativeConfig(vocabulary_mapping="intersection", num_draft_tokens=3)
    hs.save_pretrained(target, tmp_path, **options, config=config)
    model = hs.from_pretrained(tmp_path)
    inputs = tokenizer("import os\n", return_tensors="pt") | {"max_new_tokens": 24, "do_sample": False}
    with hs.record() as stats:
        output = model.generate(**inputs)
    assert torch.equal(output, target.generate(**inputs))
    assert stats.draft_acceptance_rate > 0.3, "a draft read by the wrong tokenizer guesses nothing"


def test_a_source_of_drafts_in_the_generation_config(target, tmp_path, inputs):
    model = tiny.copy.deepcopy(target)
    model.generation_config.prompt_lookup_num_tokens = 4
    hs.save_pretrained(model, tmp_path)
    with hs.record() as stats:
        output = hs.from_pretrained(tmp_path).generate(**inputs)
    assert stats.num_calls == 1 and torch.equal(output, target.generate(**inputs))
    with pytest.raises(ValueError, match="draft_kwargs"):
        hs.from_pretrained(tmp_path, draft_kwargs={"dtype": "auto"})


@pytest.mark.parametrize(
    "values, error, message",
    [
        ({"draft": "x"}, ValueError, "unknown key 'draft'"),
        ({"draft_model": 3}, TypeError, "`draft_model=3`"),
        ({"draft_model": "./draft", "num_draft_tokens": 0}, ValueError, "`num_draft_tokens=0`"),
        ({"draft_model": "./draft", "draft_revision": "v1"}, ValueError, "`draft_revision='v1'`"),
        (["draft"], TypeError, "JSON object"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(tmp_path, values, error, message):
    (tmp_path / FILE_NAME).write_text(json.dumps(values))
    with pytest.raises(error, match=message) as raised:
        hs.from_pretrained(tmp_path)
    assert FILE_NAME in str(raised.value)


def test_no_pairing_and_broken_json(target, tmp_path):
    target.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"names no draft.*save_pretrained.*attach"):
        hs.from_pretrained(tmp_path)
    for broken in ("{", "[" * 100_000):
        (tmp_path / FILE_NAME).write_text(broken)
        with pytest.raises(ValueError, match=FILE_NAME):
            hs.from_pretrained(tmp_path)
    with pytest.raises(OSError):
        hs.from_pretrained(str(tmp_path / "nowhere"))
    with pytest.raises(OSError):  # and not "names no draft"
        hs.from_pretrained("org/nowhere", local_files_only=True)
    write(tmp_path, draft_model="./nowhere")
    with pytest.raises(OSError, match=r"names \./nowhere, and there is no such subfolder"):
        hs.from_pretrained(tmp_path)


def test_what_cannot_be_saved(target, draft, tmp_path):
    for error, options, message in (
        (ValueError, {"config": hs.SpeculativeConfig(rule=TokenVerification())}, "`rule`"),
        (ValueError, {"draft_model": None}, "nothing to name"),
        (ValueError, {"draft_tokenizer": tongues.characters("ab")}, "`draft_tokenizer`"),
        (TypeError, {"num_draft_tokens": 3}, r"`num_draft_tokens=3` is a setting: give `config=.*SpeculativeConfig"),
        (TypeError, {"max_shard_sise": "1GB"}, "`max_shard_sise='1GB'` has no effect"),
    ):
        with pytest.raises(error, match=message):
            hs.save_pretrained(target, tmp_path, **{"draft_model": draft} | options)
    with pytest.raises(TypeError, match="Linear"):
        hs.save_pretrained(torch.nn.Linear(1, 1), tmp_path, draft_model=draft)
    assert not any(tmp_path.iterdir()), "nothing is written before all is known to be right"


def test_a_draft_elsewhere_gets_its_own_revision_and_no_trust(monkeypatch):
    """The target's `revision` and `trust_remote_code` are about its own repository."""
    pairing = Pairing(draft_model="org/draft", draft_revision="v2", tokenizer=".", draft_tokenizer="org/draft")
    located = pairing_module._located
    here, elsewhere = {"token": "t", "revision": "v1", "trust_remote_code": True}, {"token": "t", "revision": "v2"}
    assert located(pairing.draft_model, "org/target", here, elsewhere) == ("org/draft", elsewhere)
    assert located("./draft", "org/target", here, elsewhere) == ("org/target", here | {"subfolder": "draft"})
    assert located(".", "org/target", here, elsewhere) == ("org/target", here)


def test_a_patch_is_no_draft_of_one_model(target, draft, tmp_path):
    with hs.patch_transformers("suffix"), pytest.raises(ValueError, match="nothing to name as a draft"):
        hs.save_pretrained(target, tmp_path)


def test_push(target, draft, tmp_path, monkeypatch):
    api = Mock()
    monkeypatch.setattr(pairing_module, "HfApi", api)
    hs.save_pretrained(target, tmp_path, draft_model=draft, push_to_hub="org/pair", token="secret", private=True)
    api.assert_called_once_with(token="secret")
    api().create_repo.assert_called_once_with("org/pair", private=True, exist_ok=True)
    uploaded = api().upload_folder.call_args.kwargs
    assert uploaded["repo_id"] == "org/pair" and uploaded["folder_path"] == tmp_path
    assert {"config.json", "draft", "model.safetensors", FILE_NAME} <= {path.name for path in tmp_path.iterdir()}


def test_what_a_call_leaves_out_switches_nothing_off(target, draft, tmp_path, inputs):
    """transformers fills in `assistant_model=None`, which in a call of ours means plain decoding."""
    export_generate(tmp_path / "code")
    model = hs.attach(tiny.copy.deepcopy(target), draft, config=hs.SpeculativeConfig(num_draft_tokens=4))
    with hs.record() as stats:
        output = model.generate(**inputs, custom_generate=str(tmp_path / "code"), trust_remote_code=True)
    assert stats.num_accepted_draft_tokens > 0 and torch.equal(output, target.generate(**inputs))


def test_streamer_tokenizer_and_stop_strings_arrive(tmp_path):
    target, draft, tokenizer = tongues.pair()
    export_generate(tmp_path / "code")
    inputs = tokenizer("def main():\n", return_tensors="pt") | {"max_new_tokens": 24, "do_sample": False}
    stop = {"stop_strings": ["Python impl"], "tokenizer": tokenizer}
    streamer = Collect()
    code = {"custom_generate": str(tmp_path / "code"), "trust_remote_code": True, "local_files_only": True}
    with hs.record() as stats:
        output = target.generate(**inputs, **stop, **code, streamer=streamer, draft_model=draft, num_draft_tokens=4)
    expected = target.generate(**inputs, **stop)
    assert stats.num_accepted_draft_tokens > 0 and expected.shape[1] < inputs["input_ids"].shape[1] + 24
    assert torch.equal(output, expected)
    assert torch.cat([piece.flatten() for piece in streamer.pieces]).equal(expected[0]) and streamer.ended


def test_weights_and_code_in_one_folder(folder, target, inputs):
    """`from_pretrained(..., trust_remote_code=True)` puts the code in the place of `generate`, positional ids and all."""
    export_generate(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    expected = target.generate(**inputs)
    ids = inputs.pop("input_ids")
    with hs.record() as stats:
        output = model.generate(ids, **inputs)
    assert torch.equal(output, expected)
    assert len(stats.acceptance_histogram) == 4, "the folder's own draft, three tokens a round"
    with hs.record() as stats:
        model.generate(ids, **inputs, num_assistant_tokens=2)
        model.generate(ids, **inputs, speculative_config=hs.SpeculativeConfig(num_draft_tokens=2))
    assert stats.num_calls == 2 and len(stats.acceptance_histogram) == 3, "the call's word comes first"
    with hs.record() as stats:
        assert torch.equal(model.generate(ids, **inputs, draft_model=None), expected)
        for source in ({"prompt_lookup_num_tokens": 2}, {"draft_model": "suffix"}):
            model.generate(ids, **inputs, **source)
    assert stats.num_calls == 2, "`draft_model=None` is plain decoding, and another source leaves the default out"
    assert isinstance(hs.from_pretrained(folder, trust_remote_code=True).generate, hs.generation.Attached)


def test_code_keeps_all_settings_of_the_folder(target, draft, inputs, tmp_path):
    """A method beside the draft, and a setting that decides which tokens are drawn."""
    config = hs.SpeculativeConfig(num_draft_tokens=3, reproducible=True)
    hs.save_pretrained(target, tmp_path, draft_model=[draft, "suffix"], config=config)
    export_generate(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    call = inputs | {"do_sample": True, "temperature": 0.8}
    torch.manual_seed(0)
    expected = target.generate(**call)
    torch.manual_seed(0)
    with hs.record() as stats:
        assert torch.equal(model.generate(**call), expected)
    assert stats.num_draft_tokens and len(stats.acceptance_histogram) == 4


def test_code_reads_the_generation_config_of_a_call(folder, target, inputs):
    """A source of drafts that it names, and whether it samples."""
    export_generate(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
    for more in ({"prompt_lookup_num_tokens": 2}, {"do_sample": False}):
        config = GenerationConfig(**inputs | more)
        output = model.generate(ids, attention_mask=mask, generation_config=config)
        assert torch.equal(output, target.generate(ids, attention_mask=mask, **inputs))


def test_export_checks_its_arguments(tmp_path):
    write(tmp_path, draft_model="org/draft", draft_revision="v1")
    with pytest.raises(ValueError, match=r"draft_revision='v1'.*subfolder"):
        export_generate(tmp_path)
    write(tmp_path, draft="x")
    with pytest.raises(ValueError, match="unknown key"):
        export_generate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_the_readme_keeps_what_it_has(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags:\n- mine\n---\n# My model\n\nMy text.\n")
    write(tmp_path, draft_model="org/draft", num_draft_tokens=5)
    export_generate(tmp_path, repo_id="org/name")
    once = (tmp_path / "README.md").read_text()
    assert once.startswith("---\nlicense: mit\ntags:\n- mine\n- custom_generate\n- speculative-decoding\n")
    assert "# My model\n\nMy text.\n" in once and "custom_generate='org/name'" in once
    export_generate(tmp_path, repo_id="org/name")
    assert (tmp_path / "README.md").read_text() == once
