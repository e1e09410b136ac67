"""Drafts from what the target already has: early exit, the heads that transformers ships, a PEFT model without its adapter."""

import copy
from collections import defaultdict

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

import hf_speculative as hs
from hf_speculative.models import EarlyExitModel, probe, verified_types
from hf_speculative.models.shallow import decoder_layers
from hf_speculative.types import Batch
from tests.support import distributions, tiny
from tests.support.cases import slow_but
from tests.support.execution import run_as
from tests.support.plain import NEW, agrees, ours, plain, reproduces_plain, same_as_plain, state_of

LAYERS, EXIT = 4, 2
DEEP = {
    "gpt2": {"n_layer": LAYERS},
    "gemma3_text": {"num_hidden_layers": LAYERS, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
#: what a layer's two branches write to the residual stream goes through one of these
WRITERS = ("o_proj", "down_proj", "c_proj", "out_proj", "dense", "fc2", "dense_4h_to_h")
NORMS_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")


@torch.no_grad()
def quiet(model, first: int, factor: float):
    """Layers from `first` on write little, so that the exit before them guesses well: a random model's guesses nothing."""
    model_type = model.config.model_type
    for layer in model.get_submodule(decoder_layers(model))[first:]:
        for name, weight in layer.named_parameters():
            parts = name.split(".")
            if model_type in ("gemma3_text", "olmo2"):  # normalised after the branch; Gemma's weights are off by one
                if parts[-2] in NORMS_AFTER:
                    shift = float(model_type == "gemma3_text")
                    weight.copy_((weight + shift) * factor - shift)
            elif set(parts) & set(WRITERS):
                weight.mul_(factor)
    return model


def deep(model_type="llama", factor=0.35, attention="sdpa", **overrides):
    layers = DEEP.get(model_type, {"num_hidden_layers": LAYERS})
    return quiet(tiny.build(model_type, attention=attention, **layers | overrides), EXIT, factor)


@pytest.mark.parametrize("attention", slow_but(["sdpa", "eager"], "sdpa"))
@pytest.mark.parametrize("model_type", tiny.ARCHITECTURES)
def test_early_exit_greedy_on_every_architecture(model_type, attention):
    """Three unequal rows, past any sliding window; no layer, module or number is changed in the model."""
    model = deep(model_type, attention=attention)
    before = state_of(model)
    stats = same_as_plain(model, tiny.prompts(3), assistant_early_exit=EXIT, num_draft_tokens=4)
    assert 0.1 < stats.draft_acceptance_rate < 0.98 and state_of(model) == before


def test_early_exit_reproduces_sampling():
    for schedule in ("constant", "heuristic"):
        kwargs = {"assistant_early_exit": EXIT, "num_assistant_tokens_schedule": schedule}
        reproduces_plain(deep(), (1, 3, 4, 2), **kwargs, num_draft_tokens=4)


@pytest.mark.parametrize("name", ["temperature and top_k", "repetition penalty"])
def test_early_exit_has_the_distribution(name):
    target = quiet(tiny.llama(seed=3, vocab_size=distributions.VOCAB, layers=3, hidden=16), 1, 0.5)
    drafts = {"assistant_early_exit": 1, "num_draft_tokens": 3}
    distributions.assert_exact(target, drafts, **distributions.SETTINGS[name])


class CountColumns:
    """Context manager: how wide each pass of each decoder layer is, while it is open."""

    def __init__(self, model):
        self.model, self.layers, self.widths = model, model.get_submodule(decoder_layers(model)), defaultdict(list)

    def __enter__(self):
        def hook(index):
            return lambda module, args, kwargs: self.widths[index].append(args[0].shape[1])

        self.hooks = [layer.register_forward_pre_hook(hook(i), with_kwargs=True) for i, layer in enumerate(self.layers)]
        probe.fits_ragged(self.model)  # a model with hooks on its layers is tried
        probe.fits_early_exit(self.model, EXIT)
        self.widths.clear()
        return self

    def __exit__(self, *exception):
        for hook in self.hooks:
            hook.remove()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_early_exit_runs_no_layer_twice_for_a_token(batch_size):
    """Verifying k draft tokens: layers up to the exit run for the one that the draft has not pushed, the others for k + 1."""
    model, k = deep(), 4
    settings = {"assistant_early_exit": EXIT, "num_draft_tokens": k, "do_sample": False, "pad_token_id": 0}
    with CountColumns(model) as counted, hs.record() as stats:
        hs.generate(model, **tiny.prompts(batch_size), **settings, max_new_tokens=NEW)
    lower, upper = counted.widths[0], counted.widths[EXIT]
    assert counted.widths[EXIT - 1] == lower and counted.widths[LAYERS - 1] == upper
    assert lower[0] == upper[0] == 7 and set(lower[1:]) == {1}
    assert sum(lower) == sum(upper) and len(upper) == stats.num_target_forwards
    assert len(lower) == stats.num_draft_forwards + stats.num_target_forwards
    assert max(upper[1:]) == k + 1 and stats.num_accepted_draft_tokens > 0


def test_early_exit_drafts_with_the_truncated_model():
    for model_type in ("llama", "gemma3_text", "cohere", "granite", "gpt2"):
        model = deep(model_type)
        truncated = copy.deepcopy(model)
        parent, _, name = decoder_layers(model).rpartition(".")
        setattr(truncated.get_submodule(parent), name, truncated.get_submodule(parent)._modules[name][:EXIT])
        truncated.config.num_hidden_layers = EXIT
        inputs = tiny.prompts(2)
        batch = Batch(inputs["input_ids"], (1 - inputs["attention_mask"]).sum(1).tolist(), max_length=20)
        with torch.no_grad():
            found = EarlyExitModel(model, EXIT).exit_logits(batch, ahead=0)
            for row, pad in enumerate(batch.host_padding):
                fresh = truncated(batch.tokens[row : row + 1, pad:]).logits[0, -1]
                torch.testing.assert_close(found[row], fresh, rtol=1e-4, atol=1e-4)


def test_early_exit_keeps_caches_scores_and_shared_prompts():
    model, inputs = deep(), tiny.prompts(1)
    settings = {"do_sample": False, "max_new_tokens": 10, "return_dict_in_generate": True, "output_scores": True}
    plain = model.generate(**inputs, **settings)
    first = hs.generate(model, **inputs, **settings, assistant_early_exit=EXIT)
    torch.testing.assert_close(torch.stack(first.scores), torch.stack(plain.scores), rtol=1e-4, atol=1e-4)
    ids = torch.cat([first.sequences, torch.tensor([[3, 4, 5]])], 1)
    settings["attention_mask"] = torch.ones_like(ids)
    with CountColumns(model) as counted:
        second = hs.generate(model, ids, past_key_values=first.past_key_values, assistant_early_exit=EXIT, **settings)
    assert counted.widths[0][0] == counted.widths[EXIT][0] == 4
    assert second.sequences.tolist() == model.generate(ids, **settings).sequences.tolist()

    sampled = tiny.prompts(2) | {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0, "num_return_sequences": 3}
    agrees(model, sampled, seed=3, assistant_early_exit=EXIT)
    with CountColumns(model) as counted:
        hs.generate(model, **sampled, assistant_early_exit=EXIT, reproducible=True)
    assert counted.widths[0][0] == 7 and set(counted.widths[0][1:]) == {1}


def test_early_exit_under_accelerate():
    """Device hooks replace `forward` on the modules: the halves must not run the whole model through them."""
    hooked = deep()
    for module in (hooked, hooked.model, hooked.model.layers[0], hooked.model.layers[3]):
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    assert ours(hooked, tiny.prompts(2), assistant_early_exit=EXIT).tolist() == plain(deep(), tiny.prompts(2)).tolist()


def test_an_exit_behind_the_last_layer_is_refused():
    with pytest.raises(ValueError, match=r"`assistant_early_exit=4` leaves nothing.* 4 layers, give 1 to 3"):
        hs.generate(deep(), **tiny.prompts(1), assistant_early_exit=4)


def test_early_exit_is_neither_compiled_nor_captured(monkeypatch):
    model = deep()
    message = r"`optimize=True`.*`assistant_early_exit`"
    for execution in ({"compile": True}, {"captures": True}):
        run_as(monkeypatch, **execution)
        with tiny.refused(model, message):
            ours(model, tiny.prompts(1), assistant_early_exit=1, optimize=True)


def test_a_model_that_cannot_be_cut_is_refused(monkeypatch):
    """Two lists of layers, a replaced `forward`, logits that differ: refused by name before anything runs."""
    message = "`assistant_early_exit=2`: LlamaForCausalLM cannot be run in two halves"
    twofold, patched, inputs = deep(), deep(), tiny.prompts(1)
    twofold.more = torch.nn.ModuleList([torch.nn.Identity() for _ in range(LAYERS)])
    patched.forward = patched.forward
    for model in (twofold, patched):
        with pytest.raises(ValueError, match=message):
            hs.generate(model, **inputs, assistant_early_exit=2)

    monkeypatch.setitem(verified_types.TESTED, "ragged", [])
    model = deep()
    hs.generate(model, **inputs, assistant_early_exit=2, max_new_tokens=2)
    model = copy.deepcopy(model)
    layer_class, first = type(model.model.layers[0]), {}
    original = layer_class.forward

    def forward(self, hidden_states, *args, **kwargs):
        """The last layer adds what the first one saw."""
        first.setdefault(self.self_attn.layer_idx, hidden_states)
        skipped = first.pop(0) if self.self_attn.layer_idx == LAYERS - 1 else 0
        first.pop(self.self_attn.layer_idx, None) if self.self_attn.layer_idx else None
        return original(self, hidden_states + skipped, *args, **kwargs)

    monkeypatch.setattr(layer_class, "forward", forward)
    with pytest.raises(ValueError, match=message):
        hs.generate(model, **inputs, assistant_early_exit=2)
