"""Heads beside targets on the universal path: a recurrence, an image in the prompt, positions that the model counts itself."""

import pytest

import hf_speculative as hs
from hf_speculative.heads import load_head
from tests.architectures.check import build, prompts
from tests.support import heads, tied, tiny
from tests.support.plain import agrees, same_as_plain

#: where transformers lists a target, and heads that go with it
TARGETS = {
    "qwen3_next": ("causal", ("eagle3", "dflash", "mtp")),
    "lfm2": ("causal", ("eagle3",)),
    "llava": ("image-text", ("eagle3", "dflash")),
    "qwen2_vl": ("image-text", ("mtp", "dflash")),
}
NEW = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


def made(name):
    """A target whose next token follows mostly from the last one, which heads know."""
    model = build(TARGETS[name][0], name)
    tied.hush(model.get_decoder().layers, 0.2)
    return model


def eagle3(target):
    return heads.eagle3(target, hidden=target.config.get_text_config(decoder=True).hidden_size)


KINDS = {
    "eagle3": lambda target, folder: eagle3(target),
    "dflash": lambda target, folder: tied.dflash_for(target, steps=25),
    "mtp": lambda target, folder: load_head(heads.write_mtp(folder, target)),
}


@pytest.mark.parametrize("name, kind", [(name, kind) for name, (_, kinds) in TARGETS.items() for kind in kinds])
def test_greedy_and_seed_for_seed(name, kind, tmp_path):
    target, num_accepted = made(name), 0
    drafts = {"draft_model": KINDS[kind](target, tmp_path), "num_draft_tokens": 3}
    for batch_size in (1, 4):
        call = prompts(TARGETS[name][0], target, batch_size) | NEW
        num_accepted += agrees(target, call, **drafts).num_accepted_draft_tokens
        agrees(target, call | {"do_sample": True, "temperature": 1.2}, batch_size, **drafts)
    assert num_accepted > 0


def test_text_alone_takes_the_ragged_path():
    """An image takes its target off it, for this call."""
    target = made("llava")
    head = eagle3(target)
    assert same_as_plain(target, tiny.prompts(2), draft_model=head, num_draft_tokens=8, tree_top_k=2).num_draft_tokens
    answer = hs.check(target, head)
    assert answer and answer.target.path == "ragged"


def test_what_no_states_can_be_read_of_is_refused():
    target = made("qwen3_next")
    head, inputs = heads.eagle3(target), tiny.prompts(2)
    embedded = target.get_input_embeddings()(inputs["input_ids"])
    embeds = {"inputs_embeds": embedded, "attention_mask": inputs["attention_mask"]}
    with pytest.raises(ValueError, match="`Eagle3Model` reads the prompt's ids, not `inputs_embeds`"):
        hs.generate(target, **embeds, **NEW, draft_model=head)
    with pytest.raises(ValueError, match="`prefill_chunk_size=3` hides states that `Eagle3Model` reads"):
        hs.generate(target, **inputs, **NEW, prefill_chunk_size=3, draft_model=head)
    same_as_plain(target, inputs, num_return_sequences=1, draft_model=head)
