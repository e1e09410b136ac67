"""Heads beside targets on the universal path: a recurrence, an image in the prompt, positions that the model counts itself."""

import pytest
from transformers import set_seed

import hf_speculative as hs
from hf_speculative.heads import load_head
from tests.architectures.check import build, prompts
from tests.support import heads, tied, tiny
from tests.support.plain import same_as_plain

MAPPINGS = {
    "qwen3_next": "causal",
    "lfm2": "causal",
    "mamba2": "causal",
    "llava": "image-text",
    "qwen2_vl": "image-text",
}
NEW = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


def made(name):
    """A target whose next token follows mostly from the last one, which heads know."""
    model = build(MAPPINGS[name], name)
    tied.hush(model.get_decoder().layers, 0.2)
    return model


def mtp(target, folder):
    return load_head(heads.write_mtp(folder, target))


KINDS = {
    "eagle3": lambda target, folder: heads.eagle3(
        target, hidden=target.config.get_text_config(decoder=True).hidden_size
    ),
    "dflash": lambda target, folder: tied.dflash_for(target, steps=25),
    "mtp": mtp,
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3_next", "eagle3"),
        ("qwen3_next", "dflash"),
        ("qwen3_next", "mtp"),
        ("lfm2", "eagle3"),
        ("llava", "eagle3"),
        ("llava", "dflash"),
        ("qwen2_vl", "mtp"),
        ("qwen2_vl", "dflash"),
    ],
)
def test_greedy_and_seed_for_seed(name, kind, tmp_path):
    target = made(name)
    head = KINDS[kind](target, tmp_path)
    num_accepted = 0
    for batch_size in (1, 4):
        inputs = prompts(MAPPINGS[name], target, batch_size)
        expected = target.generate(**inputs, **NEW)
        with hs.record() as stats:
            found = hs.generate(target, **inputs, **NEW, draft_model=head, num_draft_tokens=3)
        assert found.tolist() == expected.tolist()
        num_accepted += stats.num_accepted_draft_tokens
        sampled = NEW | {"do_sample": True, "temperature": 1.2}
        set_seed(batch_size)
        expected = target.generate(**inputs, **sampled)
        set_seed(batch_size)
        found = hs.generate(target, **inputs, **sampled, draft_model=head, reproducible=True, num_draft_tokens=3)
        assert found.tolist() == expected.tolist()
    assert num_accepted > 0


def test_text_alone_takes_the_ragged_path():
    """An image takes its target off it, for this call."""
    target = made("llava")
    head = heads.eagle3(target, hidden=target.config.get_text_config(decoder=True).hidden_size)
    assert same_as_plain(target, tiny.prompts(2), draft_model=head, num_draft_tokens=8, tree_top_k=2).num_draft_tokens
    answer = hs.check(target, head)
    assert answer and answer.target.path == "ragged" and answer.target.chains is None


def test_what_no_states_can_be_read_of_is_refused():
    target = made("qwen3_next")
    head, inputs = heads.eagle3(target), tiny.prompts(2)
    embeds = {
        "inputs_embeds": target.get_input_embeddings()(inputs["input_ids"]),
        "attention_mask": inputs["attention_mask"],
    }
    with pytest.raises(ValueError, match="`Eagle3Model` reads the prompt's ids, and `inputs_embeds` came alone"):
        hs.generate(target, **embeds, **NEW, draft_model=head)
    with pytest.raises(ValueError, match="`prefill_chunk_size=3` shows the states of the last chunk alone"):
        hs.generate(target, **inputs, **NEW, prefill_chunk_size=3, draft_model=head)
    same_as_plain(target, inputs, num_return_sequences=1, draft_model=head)
