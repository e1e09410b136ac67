"""Drafts that read the target's states: MTP layers, DFlash, Gemma 4 assistants, and one of the user's own."""

import copy
from functools import partial

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import MtpCache

import hf_speculative as hs
from hf_speculative.call import checks
from hf_speculative.drafting import mtp
from hf_speculative.drafting.dflash import DFlash
from hf_speculative.drafting.gemma4_assistant import Gemma4Assistant
from hf_speculative.drafting.mtp import Mtp
from hf_speculative.models import choose
from hf_speculative.schedules import ConfidenceStop, Constant, Heuristic
from tests.support import distributions, tied, tiny
from tests.support.cases import slow_but
from tests.support.compared import compare_drafts
from tests.support.plain import agrees, reproduces_plain, same_as_plain, state_of

SMALL = {"vocab_size": distributions.VOCAB}


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """`make(name, attention)`: a target and the arguments that ask for its draft."""
    made = {}

    def build(name, attention="sdpa", **config):
        key = (name, attention, *sorted(config.items()))
        if key in made:
            return made[key]
        if name == "dflash":
            model, draft = tied.with_dflash(attention=attention, **config)
            arguments = {"draft_model": draft, "speculation_type": "dflash"}
        elif name.startswith("gemma4"):
            shared = 0 if name == "gemma4 sharing nothing" else 2
            model, draft = tied.with_gemma4_assistant(attention, num_kv_shared_layers=shared, **config)
            arguments = {"draft_model": draft, "num_draft_tokens": 4}
        else:
            tied.mtp_or_skip()
            model_type, layers = name.split(" x")
            path = tmp_path_factory.mktemp("mtp")
            model, arguments = tied.with_mtp(path, model_type, int(layers), attention, **config), {"use_mtp": True}
        made[key] = model, arguments
        return made[key]

    return build


KINDS = dict.fromkeys(("glm4_moe x1", "glm4_moe x3", "deepseek_v3 x2"), Mtp) | {"dflash": DFlash}
KINDS |= dict.fromkeys(("gemma4", "gemma4 sharing nothing"), Gemma4Assistant)
ONE_OF_EACH = ("glm4_moe x3", "dflash", "gemma4")


@pytest.mark.parametrize("attention", slow_but(["sdpa", "eager"], "sdpa"))
@pytest.mark.parametrize("name", slow_but(KINDS, *ONE_OF_EACH))
def test_greedy(make, name, attention):
    """Three unequal rows, each of which drafts and accepts what it does alone; nothing is changed in either model."""
    model, arguments = make(name, attention)
    arguments = arguments | {"num_assistant_tokens_schedule": "constant"}  # a row alone drafts as many as in a batch
    same_as_plain(model, tiny.prompts(1), **arguments)  # loads, and installs transformers' own hooks for hidden states
    models = [model, *([arguments["draft_model"]] if "draft_model" in arguments else [])]
    before = [state_of(each) for each in models]
    inputs = tiny.prompts(3)
    stats = same_as_plain(model, inputs, **arguments)
    least = 0.005 if name == "gemma4 sharing nothing" else 0.2
    assert least < stats.draft_acceptance_rate < 0.95
    alone = [same_as_plain(model, tiny.unpadded(inputs, row), **arguments) for row in range(3)]
    assert stats.num_accepted_draft_tokens == sum(each.num_accepted_draft_tokens for each in alone)
    assert [state_of(each) for each in models] == before


@pytest.mark.parametrize("name", KINDS)
def test_sampling_reproduces_plain(make, name):
    model, arguments = make(name)
    reproduces_plain(model, (1, 3, 4), **arguments)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_drafts_end_where_they_are_unsure(make, name):
    model, arguments = make(name)
    own = {key: value for key, value in arguments.items() if key != "num_draft_tokens"}
    own |= {"schedule": ConfidenceStop(Constant(3), 0.2)}
    assert same_as_plain(model, tiny.prompts(3), **own).num_draft_tokens > 0
    reproduces_plain(model, (3, 2), **own)


@pytest.mark.parametrize(("kind", "is_cut"), [("dflash", True), ("glm4_moe x2", False), ("gemma4", True)])
def test_sampling_has_the_distribution(make, kind, is_cut):
    """With the distribution each token was drawn from, an assistant that transformers drafts with by argmax included."""
    name = ("top_p" if kind == "dflash" else "temperature and top_k") if is_cut else "repetition penalty"
    extra = {"vocab_size_per_layer_input": distributions.VOCAB} if kind == "gemma4" else {}
    model, arguments = make(kind, **SMALL, **extra)
    distributions.assert_exact(model, arguments | {"num_draft_tokens": 2}, **distributions.SETTINGS[name])


def fresh_mtp(model, heads, text, k):
    hidden = model(text[:, :-1], output_hidden_states=True).hidden_states[-1]
    positions = torch.arange(1, text.shape[1])[None]
    cache = MtpCache(config=model.config.get_mtp_config())
    return heads(text[:, 1:], hidden, attention_mask=None, position_ids=positions, mtp_cache=cache)[1]


def fresh_gemma4(model, assistant, text, k):
    out = model(text[:, :-1], output_hidden_states=True, return_shared_kv_states=True, past_key_values=DynamicCache())
    token, state, logits = text[:, -1:], out.hidden_states[-1][:, -1:], []
    for _ in range(k):
        embeds = torch.cat([model.get_input_embeddings()(token), state], -1)
        position = torch.tensor([[text.shape[1] - 1]])
        step = assistant(inputs_embeds=embeds, position_ids=position, shared_kv_states=out.shared_kv_states)
        token, state = step.logits.argmax(-1), step.last_hidden_state
        logits.append(step.logits)
    return torch.cat(logits, 1)


FRESH = {Mtp: fresh_mtp, Gemma4Assistant: fresh_gemma4}


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("dflash", "gemma4 sharing nothing")])
def test_proposals_equal_those_of_a_fresh_pass(make, name, monkeypatch):
    """After every round, in every row, whatever was accepted or rolled back and whoever has left."""
    model, arguments = make(name)
    module = arguments["draft_model"] if "draft_model" in arguments else mtp.mtp_heads(model)
    fresh = lambda drafter, row, text, drafted: FRESH[KINDS[name]](model, module, torch.tensor([text]), len(drafted))[0]  # noqa: E731
    compared = compare_drafts(monkeypatch, KINDS[name], fresh)
    settings = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0}
    plain = model.generate(**tiny.prompts(4), **settings)
    settings["eos_token_id"] = plain[2, 16].item()  # rows end at different times
    kwargs = {key: value for key, value in arguments.items() if key != "num_draft_tokens"}
    same_as_plain(model, tiny.prompts(4), settings, **kwargs, schedule=Heuristic(2))
    assert len(compared) > 10 and sum(compared) > 15


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_num_return_sequences(make, name):
    model, arguments = make(name)
    settings = {"do_sample": True, "max_new_tokens": 12, "pad_token_id": 0, "num_return_sequences": 3}
    agrees(model, tiny.prompts(2) | settings, seed=3, **arguments)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_batch_returns_its_cache(make, name):
    """Rows that ended early come back to it, though their hidden states are gone."""
    model, arguments = make(name)
    inputs, settings = tiny.prompts(3), {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    settings |= {"eos_token_id": model.generate(**inputs, **settings)[0, 10].item(), "return_dict_in_generate": True}
    plain, found = (run(**inputs, **settings) for run in (model.generate, partial(hs.generate, model, **arguments)))
    assert found.sequences.tolist() == plain.sequences.tolist() and (plain.sequences[:, -1] == 0).any()
    seen = torch.cat([inputs["attention_mask"], torch.ones_like(plain.sequences[:, 8:])], 1)[:, None, :, None]
    for ours, theirs in zip(found.past_key_values.layers, plain.past_key_values.layers, strict=True):
        assert (ours.keys is None) == (theirs.keys is None)
        if theirs.keys is None:  # the layer reads another's
            continue
        shown = seen[:, :, -theirs.keys.shape[2] :]
        torch.testing.assert_close(ours.keys * shown, theirs.keys * shown, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(ours.values * shown, theirs.values * shown, rtol=1e-3, atol=1e-3)


def test_no_more_tokens_than_mtp_layers(make):
    model, arguments = make("glm4_moe x3")
    with pytest.raises(ValueError, match=r"`num_draft_tokens=9`.* at most 3 tokens"):
        hs.generate(model, **tiny.prompts(1), max_new_tokens=4, **arguments, num_draft_tokens=9)


def test_refusals(make):
    inputs = tiny.prompts(1)

    def refuses(model, message, **kwargs):
        checks.check_model(model, "model")  # may run it, once
        choose(model)  # so may this
        with tiny.refused(model, message):
            hs.generate(model, **{"max_new_tokens": 4, **inputs} | kwargs)

    llama, (_, dflash), by_model = tiny.llama(), make("dflash"), {"draft_model": tiny.llama()}
    dflash_for = "needs a DFlash draft, but `draft_model` is of type LlamaForCausalLM"
    lookup_alone = "`speculation_type='dflash'` has no effect on drafts by `prompt_lookup_num_tokens`"
    refuses(llama, "`use_mtp=True`: LlamaForCausalLM has no MTP layers", use_mtp=True)
    refuses(llama, "`use_mtp` and `draft_model`|`draft_model` and `use_mtp`", use_mtp=True, **by_model)
    refuses(llama, lookup_alone, speculation_type="dflash", prompt_lookup_num_tokens=2)
    refuses(llama, dflash_for, speculation_type="dflash", **by_model)
    refuses(llama, "`speculation_type='eagle'` is not one of dflash", speculation_type="eagle", **by_model)
    small = "made for a target of hidden size 32 with more than 1 layers"
    refuses(tiny.llama(layers=1), small, draft_model=dflash["draft_model"])
    model, assistant = make("gemma4")
    refuses(llama, "made for a Gemma 4 target of hidden size 32", draft_model=assistant["draft_model"])
    text = model.generate(**inputs, max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    ids = torch.cat([text.sequences, torch.tensor([[3, 4]])], 1)
    cached = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": text.past_key_values}
    refuses(model, "`past_key_values` lacks the states that Gemma4Assistant", **cached, **assistant)


def test_refusals_of_mtp(monkeypatch):
    """No checkpoint to load the layers from, an older transformers, layers with a recurrent state."""
    unloaded = tiny.build("glm4_moe", **tied.MTP_TYPES["glm4_moe"])
    inputs = tiny.prompts(1)

    def refuses(message, **parts):
        monkeypatch.setattr(mtp, "_mtp_class", lambda: type("MtpModel", (), parts))
        with pytest.raises(ValueError, match=message):
            hs.generate(unloaded, **inputs, use_mtp=True)

    refuses("needs the MtpModel of transformers 5.23")
    refuses("does not come from a checkpoint", forward_layer=None)
    config = copy.copy(unloaded.config)
    config.layer_types = ["linear_attention"]
    monkeypatch.setattr(type(config), "get_mtp_config", lambda self: config)
    refuses("MTP layers of type linear_attention, whose state cannot be rolled back", forward_layer=None)
