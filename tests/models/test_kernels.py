"""Attention that takes no explicit mask reads prompts, and everything else is as with sdpa."""

import pytest
import torch

from hf_speculative.call.sources import source_of
from hf_speculative.models import RaggedModel, choose
from hf_speculative.models.attention import with_folded_attention
from tests.architectures.check import build
from tests.support import heads, tiny
from tests.support.attention_kernels import FLASH, FLEX, HUB, kernels, loaded
from tests.support.cases import a_third, slow_but
from tests.support.plain import NEW, agrees, ours, same_as_plain, takes_lanes

__all__ = ["kernels"]
#: further types, among them no grouped queries, query norms, partial rotary, windows in some layers, experts, recurrent layers
MORE = ("olmo", "olmo3", "smollm3", "glm4", "helium", "nemotron", "exaone4", "qwen3_moe", "ministral", "deepseek_v3")
MORE += ("cohere2", "qwen3_next", "lfm2", "granitemoehybrid", "jamba")


def made(model_type):
    return tiny.build(model_type) if model_type in tiny.ARCHITECTURES else build("causal", model_type)


@pytest.mark.parametrize("name", [FLASH, FLEX, HUB])
@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_neox"])
def test_prompts_are_read_by_the_models_own_attention(model_type, name, kernels):
    model = loaded(tiny.build(model_type), name)
    assert choose(model).name == "ragged" and choose(model).reason is None
    draft = tiny.noisy_copy(model)
    for batch_size in (3, 1):
        kernels.calls.clear()
        ours(model, tiny.prompts(batch_size), draft_model=draft, num_draft_tokens=4)
        wide = [call for call in kernels.calls if call[1] > 1]
        assert wide and all(call == name and n == slots for call, n, slots, _ in wide), "no pass of a round"
        assert batch_size == 1 or all(has_mask for *_, has_mask in wide), "under a mask of the padding"
    assert model.config._attn_implementation == name, "nothing of the user's is changed"


@pytest.mark.parametrize(
    "model_type, name",
    a_third([*((kind, FLASH) for kind in (*tiny.ARCHITECTURES, *MORE)), *((kind, FLEX) for kind in MORE[::3])]),
)
def test_tokens_are_plain_decodings(model_type, name, kernels):
    model = loaded(made(model_type), name)
    draft = tiny.noisy_copy(model)
    for batch_size in (1, 3):
        inputs = tiny.prompts(batch_size, vocab_size=min(tiny.VOCAB, model.config.vocab_size))
        stats = same_as_plain(model, inputs, draft_model=draft, num_draft_tokens=4)
        assert stats.num_accepted_draft_tokens
    assert choose(model).name == "ragged", choose(model).reason


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss"])
def test_what_sdpa_does_not_compute_stays_on_the_universal_path(model_type, kernels):
    """Soft caps and sinks: never approximately."""
    model = loaded(build("causal", model_type), FLASH)
    assert choose(model).name == "universal"
    same_as_plain(model, tiny.prompts(2), draft_model=tiny.noisy_copy(model, noise=0.05), num_draft_tokens=3)


@pytest.mark.parametrize("name", slow_but([FLASH, FLEX], FLASH))
def test_refill_sampling_trees_and_prefixes(name, kernels):
    model = loaded(tiny.build("mistral"), name)
    draft = tiny.noisy_copy(model)
    takes_lanes(model, tiny.texts(7), draft_model=draft, num_draft_tokens=3)
    call = tiny.prompts(3) | {"do_sample": True, "temperature": 0.8, "max_new_tokens": 14, "pad_token_id": 0}
    agrees(model, call, draft_model=draft, num_draft_tokens=3)
    same_as_plain(model, tiny.prompts(3), draft_model=draft, tree_top_k=2, tree_depth=3)
    same_as_plain(model, tiny.prompts(2), draft_model="suffix")
    same_as_plain(model, tiny.prompts(2), assistant_early_exit=1)
    inputs = {name: value.repeat(3, 1) for name, value in tiny.prompts(1, width=12).items()}
    same_as_plain(model, inputs, draft_model=draft, num_draft_tokens=3)


def test_a_head_with_such_a_target_and_such_a_head(kernels):
    target = tiny.llama(layers=6)
    for name in (FLASH, FLEX):
        model, head = loaded(tiny.llama(layers=6), name), loaded(heads.eagle3(target), name)
        source_of("draft_model", head).check(model)
        stats = same_as_plain(model, tiny.prompts(3), draft_model=head, num_draft_tokens=3)
        assert stats.num_draft_tokens and stats.num_target_forwards < NEW * 3


def test_passes_are_not_compiled(kernels):
    model = loaded(tiny.llama(), FLASH)
    with pytest.warns(UserWarning, match="run eagerly: it reads prompts by an attention that takes no explicit mask"):
        same_as_plain(model, tiny.prompts(2), draft_model=tiny.noisy_copy(model), optimize=True)


def test_attention_that_chooses_by_name_keeps_it(kernels, monkeypatch):
    """Or that is looked up elsewhere: it gets no mask of ours."""
    model = loaded(tiny.llama(), FLASH)
    kind = type(model.model.layers[0].self_attn)
    forward = kind.forward

    def by_name(self, *args, **kwargs):
        assert self.config._attn_implementation in ("flash_attention_2", "hf_speculative_sdpa")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", by_name)
    assert with_folded_attention(model) is model
    assert choose(model).reason == f"uses attn_implementation={FLASH!r}, which takes no explicit mask"
    same_as_plain(model, tiny.prompts(2), draft_model=tiny.noisy_copy(model), num_draft_tokens=3)


@torch.no_grad()
def test_a_pass_that_fails_leaves_a_cache_that_works(kernels, monkeypatch):
    model = loaded(tiny.llama(), FLASH)
    inputs, draft = tiny.prompts(3), tiny.noisy_copy(model)
    choose(model)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="broken"):
        patch.setattr(RaggedModel, "run", lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("broken")))
        ours(model, inputs, draft_model=draft)
    same_as_plain(model, inputs, draft_model=draft, num_draft_tokens=3)
