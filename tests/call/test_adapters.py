"""A PEFT model that drafts for itself: one set of weights, adapters on in the target and off in the draft, or the reverse."""

import copy
import functools
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model

import hf_speculative as hs
from hf_speculative.models.model_state import loaded_for
from tests.support import distributions, tiny
from tests.support.plain import reproduces_plain, same_as_plain, state_of

# peft 0.21.2 asks transformers for it when it wraps a model
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TARGETS = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "all and a saved head": {"target_modules": "all-linear", "modules_to_save": ["lm_head"]},
    "embeddings": {"target_modules": ["embed_tokens", "o_proj", "down_proj"]},
}


def adapted(scale=0.3, kind="attention", adapter_name="default", model=None, **overrides):
    """A PEFT model whose adapter changes some of the tokens."""
    config = LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **TARGETS[kind])
    torch.manual_seed(1)
    model = get_peft_model(model or tiny.llama(**overrides), config, adapter_name=adapter_name)
    return turned_down(model, scale)


@torch.no_grad()
def turned_down(model, scale):
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.mul_(scale)
        elif "modules_to_save" in name:
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1 * weight.std())
    return model.eval()


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_without_the_adapter(batch_size, kind):
    """Nothing is left changed: neither switches nor gradients, which PEFT's own `disable_adapter()` turns on."""
    model = adapted({"attention": 0.5, "embeddings": 0.05}.get(kind, 0.3), kind)
    model.requires_grad_(False)
    draft = hs.without_adapter(model)
    before = state_of(model.get_base_model())
    stats = same_as_plain(model, tiny.prompts(batch_size), draft_model=draft, num_draft_tokens=4)
    assert 0.1 < stats.draft_acceptance_rate < (1 if batch_size > 1 else 1.1)
    assert state_of(model.get_base_model()) == before


def test_the_twins_logits_are_those_that_peft_computes():
    model = adapted(kind="all and a saved head")
    ids = tiny.prompts(1)["input_ids"]
    with torch.no_grad():
        with model.disable_adapter():
            expected = model(ids).logits
        assert torch.equal(hs.without_adapter(model)(ids).logits, expected)
        assert not torch.allclose(model(ids).logits, expected, atol=1e-2)


def test_the_reverse():
    """The plain model is the target, the adapter drafts; a target's hidden states are its own."""
    model = adapted()
    target = hs.without_adapter(model)
    stats = same_as_plain(target, tiny.prompts(3), draft_model=model, num_draft_tokens=4)
    assert 0.1 < stats.draft_acceptance_rate < 0.98
    ids = tiny.prompts(1)["input_ids"]
    for each in (target, model):
        assert len(each(ids, output_hidden_states=True).hidden_states) == 3


def test_another_adapter_drafts():
    model = adapted()
    other = LoraConfig(r=2, init_lora_weights=False, target_modules=["o_proj"], task_type="CAUSAL_LM")
    model.add_adapter("small", other)
    turned_down(model, 0.5)
    draft = hs.with_adapter(model, "small")
    before = state_of(model.get_base_model())
    ids = tiny.prompts(1)["input_ids"]
    with torch.no_grad():
        found = draft(ids).logits
    stats = same_as_plain(model, tiny.prompts(3), draft_model=draft)
    assert stats.num_accepted_draft_tokens > 0 and state_of(model.get_base_model()) == before
    model.set_adapter("small")
    with torch.no_grad():
        assert torch.equal(found, model(ids).logits)
    with pytest.raises(ValueError, match="`adapter_name='large'` is not one of the model's adapters: default, small"):
        hs.with_adapter(model, "large")


def test_sampling():
    model = adapted()
    reproduces_plain(model, (1, 3), draft_model=hs.without_adapter(model))
    model = adapted(0.5, vocab_size=distributions.VOCAB, layers=1, hidden=16)
    draft = {"draft_model": hs.without_adapter(model), "num_draft_tokens": 3}
    distributions.assert_exact(model, draft, top_k=3)


def test_both_at_once_in_two_threads():
    """Switches of the layers that both share would be seen by the other thread."""
    model, found = adapted(), {}
    twin, inputs = hs.without_adapter(model), tiny.prompts(2)
    settings = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0}
    expected = {each: each.generate(**inputs, **settings).tolist() for each in (model, twin)}
    assert expected[model] != expected[twin]

    def call(target, draft):
        found[target] = [hs.generate(target, **inputs, **settings, draft_model=draft).tolist() for _ in range(4)]

    threads = [threading.Thread(target=call, args=pair) for pair in ((model, twin), (twin, model))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {each: [tokens] * 4 for each, tokens in expected.items()}


def test_adapters_that_transformers_loaded(tmp_path):
    saved = adapted(adapter_name="default")
    saved.save_pretrained(tmp_path)
    model = tiny.llama()
    model.load_adapter(str(tmp_path))
    stats = same_as_plain(model, tiny.prompts(2), draft_model=hs.without_adapter(model))
    assert 0 < stats.draft_acceptance_rate < 1
    loaded = PeftModel.from_pretrained(tiny.llama(), str(tmp_path)).eval()
    inputs = tiny.prompts(1) | {"do_sample": False, "max_new_tokens": 8}
    assert loaded.generate(**inputs).tolist() == model.generate(**inputs).tolist()


def test_refusals(monkeypatch):
    with pytest.raises(ValueError, match="LlamaForCausalLM has no adapter layers"):
        hs.without_adapter(tiny.llama())
    with pytest.raises(TypeError, match="`model` is of type Linear"):
        hs.without_adapter(torch.nn.Linear(2, 2))
    merged = copy.deepcopy(adapted())
    merged.merge_adapter()
    with pytest.raises(ValueError, match=r"merged into its weights: call `unmerge_adapter\(\)`"):
        hs.without_adapter(merged)

    monkeypatch.setitem(sys.modules, "peft.tuners.tuners_utils", None)
    with pytest.raises(ImportError, match=r"pip install 'hf_speculative\[peft\]'"):
        hs.without_adapter(merged)


def test_plain_decoding_of_a_model_that_was_attached_before_the_adapter_came(draft):
    """`generate` of the library, like the model's own, knows what is attached below the wrapper."""
    model = adapted()
    hs.attach(model, draft)
    inputs = tiny.prompts(2) | {"max_new_tokens": 8, "do_sample": False}
    for generate in (model.generate, functools.partial(hs.generate, model)):
        with hs.record() as stats:
            generate(**inputs, num_draft_tokens=3)
            assert stats.num_calls == 1
            generate(**inputs, draft_model=None)
            assert stats.num_calls == 1


@pytest.mark.parametrize("way_in", ["generate", "attach"])
def test_an_adapter_for_each_row(way_in):
    """Rows leave a batch when they are done, and PEFT's names would not follow."""
    model = adapted()
    model.add_adapter("other", LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **TARGETS["attention"]))
    draft = hs.without_adapter(model)
    call = functools.partial(hs.generate, model, draft_model=draft)
    if way_in == "attach":
        call = hs.attach(model, draft).generate
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    names = ["default", "other", "__base__"]
    with tiny.refused(model.get_base_model(), r"`adapter_names=.*'other'"):
        call(**tiny.prompts(3), **settings, adapter_names=names)
    plain = adapted()
    plain.add_adapter("other", model.peft_config["other"])
    plain.load_state_dict(model.state_dict())
    for name in names:
        expected = plain.generate(**tiny.prompts(1), **settings, adapter_names=[name])
        assert call(**tiny.prompts(1), **settings, adapter_names=[name]).tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning")
@pytest.mark.parametrize("way_in", ["attach", "patch"])
def test_learned_prompts_around_an_attached_model(way_in):
    """PEFT calls the model inside, after it has put its own preparation there: which no cache of ours calls."""
    model = tiny.llama()
    prompted = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    call = functools.partial(prompted.generate, **tiny.prompts(1), max_new_tokens=8, do_sample=False, pad_token_id=0)
    expected = call()
    with hs.patch_transformers("auto") if way_in == "patch" else nullcontext(hs.attach(model, tiny.noisy_copy(model))):
        with pytest.raises(ValueError, match="prepends learned prompts"):
            call()
        assert torch.equal(call(draft_model=None), expected)


def test_an_activated_lora():
    """It counts its columns from the end of each pass."""
    config = LoraConfig(
        target_modules=["q_proj"], alora_invocation_tokens=[7, 8], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = get_peft_model(tiny.llama(), config).eval()
    hs.attach(model, tiny.noisy_copy(model.get_base_model()))
    with tiny.refused(model.get_base_model(), "an activated LoRA counts columns"):
        model.generate(input_ids=torch.tensor([[5, 6, 7, 8]]), max_new_tokens=8, do_sample=False, pad_token_id=0)


def test_drafts_by_name_go_with_the_model_inside(tmp_path):
    model = adapted()
    tiny.noisy_copy(tiny.llama()).save_pretrained(tmp_path)
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    hs.generate(model, **tiny.prompts(1), **settings, draft_model=str(tmp_path))
    assert loaded_for(model.get_base_model())
    hs.detach(model)
    assert not loaded_for(model.get_base_model()) and not loaded_for(model)
