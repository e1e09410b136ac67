"""Caches that a call is given and gives back, and the turns that go on from them."""

import pytest
import torch
from transformers import DynamicCache, set_seed

import hf_speculative as hs
from hf_speculative.models.rollback import copy_of
from tests.architectures.check import build, prompts
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import ours, plain, same

# Mllama's own, in older transformers
pytestmark = pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")
GREEDY = {"max_new_tokens": 14, "do_sample": False, "pad_token_id": 0}


def test_a_cache_shorter_than_the_padding(target, draft):
    cache = target(torch.tensor([[0], [5]]), use_cache=True).past_key_values
    ids = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    assert ours(target, inputs, draft_model=draft, past_key_values=cache).tolist() == plain(target, inputs).tolist()


def following(inputs, text, num_more=3, new=None):
    """The prompt of a further turn: `text`, all that is `new` in it shown if not told otherwise, and more tokens."""
    new = torch.ones(len(text), text.shape[1] - inputs["attention_mask"].shape[1]).long() if new is None else new
    more = torch.randint(1, 60, (len(text), num_more), generator=torch.Generator().manual_seed(text.shape[1]))
    mask = torch.cat([inputs["attention_mask"], new, torch.ones_like(more)], 1)
    return {"input_ids": torch.cat([text, more], 1), "attention_mask": mask}


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_5", "gemma3", "mllama"])
@pytest.mark.parametrize("drafts_for_itself", slow_but([False, True], False))
def test_turns_after_an_image(model_type, drafts_for_itself):
    """Which tokens are the image is said with it, for that turn alone; how far it moves what follows, the model notes.

    Mllama's image lies in the text's cache.
    """
    model = build("image-text", model_type, spreads=2 if model_type == "mllama" else 1)
    sources = {}, {"draft_model": model if drafts_for_itself else tiny.noisy_copy(model)}
    first, texts = prompts("image-text", model, 2), []
    of_image = {name: first[name] for name in ("mm_token_type_ids", "image_grid_thw") if name in first}
    for turns in ([0, 0, 0, 0], [1, 1, 0, 1]):  # plain ones in between see nothing of what went before
        given, cache = first, DynamicCache(config=model.config)
        for turn, source in enumerate(turns):
            text = hs.generate(model, **given, **GREEDY, past_key_values=cache, **sources[source])
            given = following(first, text) | (of_image if turn == 0 else {})
        texts.append(text.tolist())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        *(("llama", 1), ("llama", 3), ("gemma3_text", 3), ("gemma3n_text", 1)),
        *(("qwen3_next", 3), ("bamba", 3), ("lfm2_moe", 3)),
    ],
)
def test_the_cache_after_a_stop_inside_a_block(name, batch_size):
    """What was accepted beyond the stop is not the text's: the cache that comes back ends where plain decoding's does.

    The next turn feeds only what is new.
    """
    model = build("causal", name)
    first = prompts("causal", model, batch_size)
    plain = model.generate(**first, **GREEDY)
    new = plain[:, first["input_ids"].shape[1] :].tolist()
    eos = [[t for i, t in enumerate(row) if t not in row[:i]][-1] for row in new]  # each row's last new kind of token
    stops = GREEDY | {"eos_token_id": eos, "return_dict_in_generate": True}
    expected = model.generate(**first, **stops, past_key_values=DynamicCache(config=model.config))
    cache = DynamicCache(config=model.config)
    found = hs.generate(model, **first, **stops, past_key_values=cache, draft_model=model)
    assert found.sequences.tolist() == expected.sequences.tolist() and found.statistics.num_spec_steps
    assert found.past_key_values is cache
    assert cache.get_seq_length() == expected.past_key_values.get_seq_length() == found.sequences.shape[1] - 1
    for own, theirs in zip(cache.layers, expected.past_key_values.layers, strict=True):
        if getattr(theirs, "keys", None) is not None:
            assert own.keys.shape == theirs.keys.shape
        for states in ("conv_states", "recurrent_states"):
            for index, state in getattr(theirs, states, {}).items():
                if state is not None:
                    torch.testing.assert_close(getattr(own, states)[index], state, rtol=1e-3, atol=1e-3)
    draft, second = tiny.noisy_copy(model), following(first, found.sequences, 4)
    again = model.generate(**second, **GREEDY, past_key_values=expected.past_key_values).tolist()
    with tiny.CountForwards(model) as forwards:
        found = hs.generate(model, **second, **GREEDY, past_key_values=cache, draft_model=draft)
    assert found.tolist() == again
    assert forwards.lengths[0] == (batch_size, 5), "the last token of the turn before, and the new ones"


@pytest.mark.parametrize("shows_pads", [True, False])
@pytest.mark.parametrize("name", slow_but(["llama", "gemma3_text", "gpt2", "bloom"], "gemma3_text", "bloom"))
def test_a_batch_goes_on_from_the_cache_it_returns(name, shows_pads):
    """Rows that ended early hold pad tokens, which the longer mask shows or hides; each row goes on as after plain decoding."""
    model = build("causal", name)
    draft, first = tiny.noisy_copy(model), prompts("causal", model, 4)
    width, with_cache = first["input_ids"].shape[1], GREEDY | {"return_dict_in_generate": True}
    new = model.generate(**first, **GREEDY)[:, width:].tolist()
    ends = {"eos_token_id": [new[0][3], new[2][8]]}
    plain = model.generate(**first, **with_cache, **ends)
    sources = [{"draft_model": draft}, {"draft_model": model, "num_draft_tokens": 4}, {"prompt_lookup_num_tokens": 3}]
    if name in ("llama", "gpt2"):
        sources.append({"assistant_early_exit": 1})
    turns = [hs.generate(model, **first, **with_cache, **ends, **source) for source in sources]
    pads = plain.sequences[:, width:] == 0
    assert pads.any() and not pads.all(1).any()
    shown = torch.ones_like(pads) if shows_pads else ~pads
    second = following(first, plain.sequences, new=shown.long())
    expected = model.generate(**second, **with_cache, past_key_values=copy_of(plain.past_key_values))
    for turn in turns:
        assert turn.sequences.tolist() == plain.sequences.tolist()
        for own, theirs in zip(turn.past_key_values.layers, plain.past_key_values.layers, strict=True):
            seen = torch.cat([first["attention_mask"], torch.ones_like(pads).long()], 1)[:, :-1]
            seen = seen[:, None, -theirs.keys.shape[2] :, None]
            same((own.keys * seen, own.values * seen), (theirs.keys * seen, theirs.values * seen))
            assert own.get_seq_length() == theirs.get_seq_length()
        kept = copy_of(turn.past_key_values)
        assert model.generate(**second, **GREEDY, past_key_values=kept).tolist() == expected.sequences.tolist()
        with tiny.CountForwards(model) as forwards:
            found = hs.generate(model, **second, **with_cache, past_key_values=turn.past_key_values, draft_model=draft)
        assert found.sequences.tolist() == expected.sequences.tolist()
        assert (4, 4) in forwards.lengths, "the last token of the turn before, and the new ones"
    third = following(second, expected.sequences) | GREEDY
    again = model.generate(**third, past_key_values=expected.past_key_values).tolist()
    assert hs.generate(model, **third, past_key_values=found.past_key_values, draft_model=draft).tolist() == again


def test_copies_of_a_prompt_that_end_at_once_are_in_the_cache(target, draft):
    """Their prompts were read once for all of them, and some leave before the draft has read a token of its own."""
    settings = GREEDY | {"do_sample": True, "num_return_sequences": 3, "eos_token_id": [*range(1, 12)]}
    for seed in range(6):
        call = tiny.prompts(2, seed=seed) | settings | {"return_dict_in_generate": True}
        set_seed(seed)
        plain = target.generate(**call)
        set_seed(seed)
        found = hs.generate(target, **call, draft_model=draft, reproducible=True)
        assert found.sequences.tolist() == plain.sequences.tolist()
        new = torch.ones(6, plain.sequences.shape[1] - 8)
        seen = torch.cat([call["attention_mask"].repeat_interleave(3, 0), new], 1)[:, None, :, None]
        for own, theirs in zip(found.past_key_values.layers, plain.past_key_values.layers, strict=True):
            same((own.keys * seen, own.values * seen), (theirs.keys * seen, theirs.values * seen))
