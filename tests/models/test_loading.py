"""Models given by name: their files have to fill the class that their config names."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import hf_speculative as hs
from hf_speculative.models.loading import load_model
from tests.support import tiny


@pytest.fixture
def folder(tmp_path):
    tiny.llama().save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, lost=(), extra=(), wider=()):
    """The checkpoint without some of its weights, with others, or with rows more."""
    file = folder / "model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if name not in lost}
    weights |= {name: torch.zeros(2, 2) for name in extra}
    weights |= {name: torch.cat([weights[name]] * 2) for name in wider}
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        # What DFlash's published folders look like: a block-diffusion draft that calls itself a causal language model.
        ({"lost": ["lm_head.weight"], "extra": ["fc.weight"]}, "missing: lm_head.weight; unexpected: fc.weight"),
        ({"lost": ["model.embed_tokens.weight"]}, "missing: model.embed_tokens.weight"),
        ({"extra": [f"fc.{i}.weight" for i in range(9)]}, "unexpected: fc.0.weight, .*, fc.3.weight and 5 more"),
        ({"wider": ["lm_head.weight"]}, "of another shape: lm_head.weight"),
    ],
    ids=["another class", "missing", "unexpected", "another shape"],
)
def test_weights_that_do_not_fill_the_class(folder, change, named):
    rewrite(folder, **change)
    with pytest.raises(ValueError, match=rf"does not hold the weights of the class LlamaForCausalLM.*{named}"):
        load_model(folder, ignore_mismatched_sizes=True)


def test_what_transformers_itself_leaves_out(tmp_path):
    """Tied weights are stored once, and old checkpoints have buffers that no class reads any more."""
    tied = tiny.build("llama", tie_word_embeddings=True)
    tied.save_pretrained(tmp_path)
    rewrite(tmp_path, lost=["lm_head.weight"], extra=["model.layers.0.self_attn.rotary_emb.inv_freq"])
    loaded = load_model(tmp_path)
    assert torch.equal(loaded.lm_head.weight, tied.lm_head.weight) and not loaded.training


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21.2 asks for it
def test_an_adapter_beside_the_weights(folder):
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(load_model(folder), config)
    adapted.save_pretrained(folder)
    inputs = tiny.prompts(1)
    assert torch.equal(load_model(folder)(**inputs).logits, adapted(**inputs).logits)


def test_a_draft_and_a_target_by_name(folder, target, tmp_path):
    assert hs.generate(target, **tiny.prompts(1), draft_model=str(folder), max_new_tokens=2).shape == (1, 9)
    rewrite(folder, lost=["lm_head.weight"])
    other = tiny.llama()
    with tiny.refused(other, r"missing: lm_head.weight"):
        hs.generate(other, **tiny.prompts(1), draft_model=str(folder))
    hs.save_pretrained(target, tmp_path / "pair", draft_model=target)
    rewrite(tmp_path / "pair", lost=["lm_head.weight"])
    with pytest.raises(ValueError, match=r"missing: lm_head.weight"):
        hs.from_pretrained(tmp_path / "pair")
