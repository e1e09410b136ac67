"""speculators' MTP heads: one layer, used again for each further token of a draft."""

import pytest
import torch
from safetensors.torch import load_file

import hf_speculative as hs
from hf_speculative.drafting.mtp import RecursiveMtp
from hf_speculative.heads import load_head, write_head
from tests.support import distributions, heads, tied, tiny
from tests.support.blocks import PlainLayers
from tests.support.compared import compare_drafts
from tests.support.plain import plain, reproduces_plain, same_as_plain

STEPS = heads.MTP_STEPS


def make_target(**config):
    model = tiny.build("llama", **config)
    tied.hush(model.model.layers, 0.2)
    return model


def plain_logits(folder, target, text, drafted):
    """After each of `drafted`, one more pass over the whole text: `(steps, vocab)`."""
    tensors = {name.removeprefix("mtp_layers.0."): w for name, w in load_file(folder / "model.safetensors").items()}
    layer = PlainLayers(tensors, head_dim=8)
    states = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0]
    tokens, out, n = [*text, *drafted], [], len(text) - 1
    for ahead in range(len(drafted) + 1):
        embedded = target.get_input_embeddings().weight[tokens[1 + ahead : 1 + ahead + n]]
        both = [layer.norm(embedded, "token_layernorm"), layer.norm(states, "hidden_layernorm")]
        x = layer.linear(torch.cat(both, -1), "input_proj")
        y = layer.norm(x, "input_layernorm")
        x = x + layer.attention("self_attn", y, y, torch.ones(n, n).tril().bool())
        x = x + layer.mlp("mlp", layer.norm(x, "post_attention_layernorm"))
        states = layer.norm(x, "final_layernorm")
        out.append(target.get_output_embeddings().weight @ states[-1])
    return torch.stack(out)


@pytest.fixture(scope="module")
def target():
    return make_target()


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    return heads.write_mtp(tmp_path_factory.mktemp("heads") / "mtp", target)


@torch.no_grad()
def test_proposals_are_those_of_a_plain_computation(target, folder, monkeypatch):
    fresh = lambda drafter, row, text, drafted: plain_logits(folder, target, text, drafted[:-1])  # noqa: E731
    compared = compare_drafts(monkeypatch, RecursiveMtp, fresh)
    inputs = tiny.prompts(3)
    settings = {"max_new_tokens": 16, "eos_token_id": plain(target, inputs)[2, 12].item()}
    same_as_plain(target, inputs, settings, draft_model=str(folder))
    assert len(compared) > 8 and max(compared) == STEPS


def test_greedy_and_reproducible(target, folder):
    head = load_head(folder)
    for batch_size in (1, 4):
        assert same_as_plain(target, tiny.prompts(batch_size), draft_model=head).draft_acceptance_rate > 0.08
    reproduces_plain(target, (1, 4), draft_model=head)


@pytest.mark.slow
def test_sampling_has_the_distribution(tmp_path):
    small = make_target(vocab_size=distributions.VOCAB)
    head = load_head(heads.write_mtp(tmp_path / "small", small))
    distributions.assert_exact(small, {"draft_model": head, "num_draft_tokens": 2}, **distributions.SETTINGS["top_p"])


def test_what_is_written_is_what_was_read(folder, tmp_path):
    head = load_head(folder)
    write_head(head, tmp_path / "again", "speculators")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)
    assert load_head(tmp_path / "again").config.max_draft_tokens == STEPS
    head.save_pretrained(tmp_path / "saved")
    assert type(load_head(tmp_path / "saved")) is type(head)


def test_refusals(folder, target, tmp_path):
    with pytest.raises(ValueError, match="was made for a target of hidden size 32 with 61 token ids"):
        hs.generate(tiny.llama(vocab_size=64), **tiny.prompts(1), draft_model=str(folder), max_new_tokens=2)
    with pytest.raises(ValueError, match="`num_nextn_predict_layers=2`: give a head of one layer"):
        load_head(heads.write_mtp(tmp_path / "two", target, num_nextn_predict_layers=2))
