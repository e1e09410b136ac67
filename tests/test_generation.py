"""The ways in: generate, attach and detach, patch_transformers, the mixin, record."""

import copy
import functools
import inspect
import json
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    LlamaForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
    pipeline,
)
from transformers.generation import utils
from transformers.modeling_outputs import BaseModelOutput

import hf_speculative as hs
from hf_speculative.call.preparation import load_draft
from hf_speculative.generation import generate_rounds
from hf_speculative.models import num_parameters, weights_of_a_pass
from tests.support import tiny
from tests.support.plain import agrees, speculates
from tests.support.trainers import checkpointed

KWARGS = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0}


@pytest.fixture
def attached():
    model = tiny.llama()
    yield hs.attach(model, tiny.noisy_copy(model))  # a draft of its own: pickles refuse hooks that other tests leave
    hs.detach(model)


@pytest.mark.parametrize("name", ["draft_model", "assistant_model"])
def test_generate(target, draft, name):
    agrees(target, tiny.prompts(3) | KWARGS, **{name: draft})
    ids = tiny.prompts(1)["input_ids"]
    assert hs.generate(target, ids, **KWARGS, **{name: draft}).tolist() == target.generate(ids, **KWARGS).tolist()


def test_generate_returns_what_transformers_returns(target, draft):
    out = hs.generate(target, **tiny.prompts(2), **KWARGS, draft_model=draft, return_dict_in_generate=True)
    plain = target.generate(**tiny.prompts(2), **KWARGS, return_dict_in_generate=True)
    assert isinstance(out, hs.GenerateSpeculativeOutput) and isinstance(out, type(plain))
    assert plain.keys() == out.keys() and out.scores is None and out.logits is None
    assert out.statistics.num_new_tokens == 32 and out.from_draft.shape == (2, 16)
    assert out.from_draft.sum() == out.statistics.num_accepted_draft_tokens
    assert torch.equal(out.from_draft, out.acceptance_prob == 1)
    assert torch.equal(~out.from_draft, out.acceptance_prob.isnan())


def test_a_generation_config_object(target, draft):
    config = GenerationConfig(max_new_tokens=9, do_sample=False, pad_token_id=0, num_assistant_tokens=2)
    before = config.to_dict()
    stats = agrees(target, tiny.prompts(2) | {"generation_config": config}, draft_model=draft)
    assert len(stats.acceptance_histogram) <= 3 and config.to_dict() == before


def test_a_generation_config_alone_warns_of_nothing(draft, monkeypatch):
    """transformers warns of a config together with other settings: what is switched off for a call goes into the config."""
    said, model = [], tiny.llama()
    monkeypatch.setattr(utils.logger, "warning_once", said.append)
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    config = GenerationConfig(**settings, prompt_lookup_num_tokens=3)
    expected = model.generate(**tiny.prompts(2), **settings)
    with hs.record() as stats:
        assert hs.generate(model, **tiny.prompts(2), generation_config=config).tolist() == expected.tolist()
        config.prompt_lookup_num_tokens, model.generation_config.use_cache = None, False
        found = hs.generate(model, **tiny.prompts(2), generation_config=config, draft_model=draft)
        list(hs.generate_batches(model, [[5, 6]], generation_config=config, draft_model=draft))
    assert found.tolist() == expected.tolist() and stats.num_calls == 3 and not said
    # The model's own word can only be overruled beside the config.
    model.generation_config.prompt_lookup_num_tokens = 3
    assert hs.generate(model, **tiny.prompts(2), generation_config=config, draft_model=draft).tolist() == found.tolist()


def test_attach_and_detach(attached, draft):
    for generate in (attached.generate, functools.partial(hs.generate, attached)):
        call = functools.partial(generate, **tiny.prompts(3), **KWARGS)
        assert speculates(call)
        for name in ("draft_model", "assistant_model"):
            assert not speculates(functools.partial(call, **{name: None}))
    expected = hs.detach(attached).generate(**tiny.prompts(3), **KWARGS)
    assert "generate" not in vars(attached)
    hs.attach(attached, draft, config=hs.SpeculativeConfig(num_draft_tokens=2))
    with hs.record() as stats:
        assert attached.generate(**tiny.prompts(3), **KWARGS).tolist() == expected.tolist()
    assert len(stats.acceptance_histogram) <= 3


def test_a_call_overrides_what_is_attached(attached, draft, unrelated):
    other = tiny.noisy_copy(attached, noise=0)
    with hs.record() as stats:
        attached.generate(**tiny.prompts(1), **KWARGS, draft_model=other, num_draft_tokens=3)
    assert stats.draft_acceptance_rate == 1
    with hs.record() as stats:
        attached.generate(**tiny.prompts(1), **KWARGS, prompt_lookup_num_tokens=2)
    assert stats.num_draft_forwards == 0 and stats.num_calls == 1


def test_an_attached_model_is_the_model_it_was(attached, tmp_path):
    assert type(attached) is LlamaForCausalLM and isinstance(attached, GenerationMixin)
    assert next(iter(inspect.signature(attached.generate).parameters)) == "inputs"
    attached.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.architectures == ["LlamaForCausalLM"] and "generate" not in vars(again)
    assert set(attached.state_dict()) == set(again.state_dict())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_an_attached_model_speculate_by_themselves(attached, how):
    other = how(attached)
    assert other.generate.model is other and other.generate.draft_model is not attached.generate.draft_model
    expected = attached.generate(**tiny.prompts(2), **KWARGS, draft_model=None)
    with torch.no_grad():
        attached.lm_head.weight.zero_()
    assert speculates(lambda: other.generate(**tiny.prompts(2), **KWARGS))
    assert other.generate(**tiny.prompts(2), **KWARGS).tolist() == expected.tolist()


def test_a_draft_by_name(target, draft, tmp_path):
    draft.save_pretrained(tmp_path)
    agrees(target, tiny.prompts(2) | KWARGS, draft_model=str(tmp_path))
    model = hs.attach(tiny.llama(), str(tmp_path))
    assert speculates(lambda: model.generate(**tiny.prompts(2), **KWARGS))


def test_patch_transformers_for_a_while_and_by_calls(target, draft):
    original = GenerationMixin.generate
    with hs.patch_transformers():
        assert speculates(lambda: target.generate(**tiny.prompts(2), **KWARGS, draft_model=draft))
        assert speculates(lambda: target.generate(**tiny.prompts(2), **KWARGS, assistant_model=draft))
        assert not speculates(lambda: target.generate(**tiny.prompts(2), **KWARGS))
        assert inspect.signature(GenerationMixin.generate) == inspect.signature(original)
    assert GenerationMixin.generate is original
    with pytest.raises(ZeroDivisionError), hs.patch_transformers():
        raise ZeroDivisionError
    assert GenerationMixin.generate is original
    outer, inner = hs.patch_transformers(), hs.patch_transformers()
    try:
        outer.undo()  # in any order
        assert speculates(lambda: target.generate(**tiny.prompts(2), **KWARGS, draft_model=draft))
    finally:
        inner.undo()
    outer.undo()  # twice is fine
    assert GenerationMixin.generate is original


@pytest.mark.parametrize("call", [hs.generate, hs.detach, hs.attach, hs.check])
def test_a_target_given_by_name(call):
    with pytest.raises(TypeError, match="`model` is of type str: pass a transformers model that is loaded"):
        call("folder")


@pytest.mark.parametrize("name", ["/no/where", "no where", __file__])
def test_a_draft_that_is_not_there(target, name):
    with pytest.raises(ValueError, match=f"`draft_model='{name}'` cannot be loaded: .*{name}"):
        hs.generate(target, **tiny.prompts(1), **KWARGS, draft_model=name)


def test_code_of_a_repository_is_not_run(target, tmp_path, monkeypatch):
    """transformers would ask on standard input."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}))
    (tmp_path / "own.py").write_text("raise SystemExit")
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("asked"))
    with pytest.raises(ValueError, match=r"brings code of its own.*`trust_remote_code=True`, and pass the model"):
        hs.generate(target, **tiny.prompts(1), **KWARGS, draft_model=str(tmp_path))


def test_attached_and_patched_at_once(attached):
    with hs.patch_transformers(), hs.record() as stats:
        attached.generate(**tiny.prompts(2), **KWARGS)
    assert stats.num_calls == 1


def test_the_mixin(draft):
    class Speculative(hs.SpeculativeGenerationMixin, LlamaForCausalLM):
        pass

    model = Speculative(tiny.llama().config).eval()
    inputs = tiny.prompts(2)
    expected = model.generate(**inputs, **KWARGS)
    assert speculates(lambda: model.generate(**inputs, **KWARGS, draft_model=draft))
    assert not speculates(lambda: model.generate(**inputs, **KWARGS))
    ids = tiny.prompts(1)["input_ids"]
    assert model.generate(ids, None, **KWARGS, draft_model=draft).tolist() == model.generate(ids, **KWARGS).tolist()
    assert hs.generate(model, **inputs, **KWARGS, draft_model=draft).tolist() == expected.tolist()


#: names of what modules and their classes hold, and which objects these are
HELD = """
import sys, torch, transformers
from transformers import GenerationMixin, LlamaForCausalLM, PreTrainedModel, Trainer, pipeline

def held():
    modules = {name: vars(module) for name, module in list(sys.modules.items()) if name.startswith(("torch", "transformers"))}
    holders = modules | {(name, key): vars(value) for name, names in modules.items() for key, value in list(names.items())
                         if isinstance(value, type) and value.__module__.startswith(("torch", "transformers"))}
    return {(holder, key): value for holder, names in holders.items() for key, value in list(names.items()) if callable(value)}

before = held()
import hf_speculative as hs
[getattr(hs, name) for name in hs.__all__]
after = held()
print(*(name for name, value in before.items() if after.get(name) is not value), sep="\\n")
"""


@pytest.mark.slow  # a process that imports all of transformers takes seconds
def test_importing_changes_nothing():
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout + done.stderr


def test_record_collects_over_calls_and_nests(target, draft):
    with hs.record() as outer:
        hs.generate(target, **tiny.prompts(2), **KWARGS, draft_model=draft)
        with hs.record() as inner:
            hs.generate(target, **tiny.prompts(3), **KWARGS, draft_model=draft)
    assert (outer.num_calls, inner.num_calls) == (2, 1) and (len(outer.rows), len(inner.rows)) == (5, 3)
    assert outer.num_new_tokens == 5 * 16


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_pipeline_speculates_in_batches(as_dict):
    target, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    pipe = pipeline("text-generation", model=hs.attach(target, draft), tokenizer=tokenizer)
    prompts = ["import os", "def f(x):", "class A"]
    settings = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": as_dict}
    with hs.record() as stats:
        found = pipe(prompts, batch_size=3, **settings)
    assert stats.num_calls == 1 and len(stats.rows) == 3
    hs.detach(target)
    assert pipe(prompts, batch_size=3, **settings) == found, "the same text, and no key beside it"


def test_a_keyword_switches_a_setting_off(target, draft):
    """`None` in a call comes before the model's generation config, as in transformers."""
    model = copy.deepcopy(target)
    model.generation_config.stop_strings = ["x"]
    call = tiny.prompts(1) | KWARGS
    expected = target.generate(**call)
    assert torch.equal(hs.generate(model, **call, stop_strings=None, draft_model=draft), expected)


def test_code_between_rounds_has_the_models_own_modes(target, draft):
    """Such as a training step between the results of an iterator."""
    target, draft = checkpointed(copy.deepcopy(target)), copy.deepcopy(draft)
    draft.train()
    call = tiny.prompts(2) | KWARGS
    prompts = [row[row != 0] for row in tiny.prompts(2)["input_ids"]]
    ways = (
        generate_rounds(target, **call, draft_model=draft),
        hs.generate_batches(target, prompts, draft_model=draft, max_new_tokens=8, do_sample=False),
    )
    for way in ways:
        for _ in way:
            assert target.model.layers[0].gradient_checkpointing and draft.training


def test_a_cache_of_another_dtype_is_not_used_again(target, draft):
    """accelerate wraps the `forward` of a model in autocast."""
    model = hs.attach(copy.deepcopy(target), copy.deepcopy(draft))
    call = tiny.prompts(2) | KWARGS
    before = model.generate(**call)
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    model.generate(**call)
    del model.forward
    assert torch.equal(model.generate(**call), before)


def test_packed_weights_count():
    """A quantised layer's lie in buffers, or several in one number."""
    model = tiny.llama()
    whole = num_parameters(model), weights_of_a_pass(model)
    for layer in model.model.layers:
        packed = nn.Module()
        packed.in_features, packed.out_features = layer.mlp.up_proj.in_features, layer.mlp.up_proj.out_features
        packed.register_buffer("qweight", torch.zeros(packed.in_features // 8, packed.out_features, dtype=torch.int32))
        layer.mlp.up_proj = packed
    model.is_quantized = True
    assert (num_parameters(model), weights_of_a_pass(model)) == whole


@pytest.mark.parametrize("layers", [[-1], [0, 2], 1])
def test_hidden_states_of_some_layers(target, draft, layers):
    call = tiny.prompts(2) | KWARGS | {"return_dict_in_generate": True, "output_hidden_states": layers}
    expected, found = target.generate(**call), hs.generate(target, **call, draft_model=draft)
    for own, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert [None if one is None else one.shape for one in own] == [None if one is None else one.shape for one in other]


def test_a_criterion_of_one_column(target, draft):
    ids, call = tiny.prompts(2), KWARGS | {"eos_token_id": None}
    stop = lambda ids, scores: torch.full((len(ids), 1), ids.shape[1] == 12)  # noqa: E731
    expected = target.generate(**ids, **call, stopping_criteria=[stop])
    assert torch.equal(hs.generate(target, **ids, **call, stopping_criteria=[stop], draft_model=draft), expected)


def test_a_drafter_of_ones_own_with_fewer_tokens(target):
    class Own(hs.Drafter):
        def propose(self, batch, num_tokens, schedule, sampler):
            probs = torch.full((len(batch.rows), max(num_tokens), 30), 1 / 30)
            return hs.Draft(sampler.categorical(probs), probs, torch.tensor(num_tokens))

    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": 8, "pad_token_id": 0}
    output = hs.generate(target, **tiny.prompts(2), **settings, draft_model=Own(), num_draft_tokens=3)
    assert output.shape[1] == tiny.prompts(2)["input_ids"].shape[1] + 8


def test_a_decoder_that_reads_an_encoders_states():
    """It has no encoder of its own: plain `generate` gives the output of a decoder."""
    sizes = dict.fromkeys(("d_model", "decoder_ffn_dim", "encoder_ffn_dim"), 32)
    sizes |= dict.fromkeys(("decoder_layers", "encoder_layers"), 1)
    sizes |= dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 2)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    torch.manual_seed(0)
    model = WhisperForCausalLM(WhisperConfig(vocab_size=99, **sizes, **tokens)).eval()
    states = BaseModelOutput(torch.randn(1, 8, 32))
    call = {"encoder_outputs": states, "max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    call |= {"output_hidden_states": True, "input_ids": torch.tensor([[1, 5]])}
    found, expected = hs.generate(model, **call, draft_model="auto"), model.generate(**call)
    assert isinstance(found, type(expected)) and torch.equal(found.sequences, expected.sequences)


def test_a_folder_that_is_written_again_is_loaded_again(target, tmp_path):
    """Train, try, train more: in one process."""
    kept = []
    for std in (1.0, 0.0):
        tiny.noisy_copy(target, std).save_pretrained(tmp_path)
        hs.attach(target, str(tmp_path), num_draft_tokens=3)
        with hs.record() as stats:
            target.generate(**tiny.prompts(2), max_new_tokens=20, do_sample=False, pad_token_id=0)
        kept.append(stats.draft_acceptance_rate)
    assert kept[0] < kept[1] == 1
    loaded = load_draft(str(tmp_path), target)
    (tmp_path / "log.txt").write_text("")
    (tmp_path / "more.safetensors").symlink_to("/nowhere")
    assert load_draft(str(tmp_path), target) is loaded
    hs.detach(target)


@pytest.mark.slow
def test_iterators_may_be_open_at_the_end_of_a_program():
    """Generators are closed when modules are taken apart already."""
    settings = "max_new_tokens=40, pad_token_id=0, draft_model='ngram'"
    calls = f"batches = hs.generate_batches(model, [[5, 6]], {settings})\nnext(batches)\n"
    calls += f"rounds = generate_rounds(model, input_ids=torch.tensor([[5, 6]]), {settings})\nnext(rounds)"
    imports = "import torch, hf_speculative as hs\nfrom hf_speculative.generation import generate_rounds"
    ended = subprocess.run(
        [sys.executable, "-c", f"{imports}\nmodel, *_ = hs.embedded_pair()\n{calls}"], capture_output=True, text=True
    )
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
