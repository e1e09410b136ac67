"""Where settings come from, and that none is written anywhere."""

import pytest
from transformers import GenerationConfig

import hf_speculative as hs
from tests.support import tiny
from tests.support.plain import ours, plain


@pytest.mark.parametrize("name", ["num_draft_tokens", "num_assistant_tokens"])
def test_settings_in_the_call_count(target, twin, name):
    with tiny.CountForwards(target) as forwards:
        ours(target, tiny.prompts(1), draft_model=twin, **{name: 3})
    assert forwards.lengths == [(1, 7)] + [(1, 4)] * 5 + [(1, 3)]


def test_settings_in_either_generation_config_count(target, twin):
    for model in (target, twin):
        model.generation_config.num_assistant_tokens = 2
        try:
            with hs.record() as stats:
                ours(target, tiny.prompts(1), draft_model=twin)
        finally:
            model.generation_config.num_assistant_tokens = None
        assert stats.acceptance_histogram[-1] > 0 and len(stats.acceptance_histogram) == 3


def test_no_draft_is_none_whatever_the_calls_own_config_names(target):
    config = GenerationConfig(prompt_lookup_num_tokens=3, max_new_tokens=8, do_sample=False, pad_token_id=0)
    call = tiny.prompts(1) | {"generation_config": config}
    with hs.record() as stats:
        expected = hs.generate(target, **call)
    assert stats.num_calls == 1
    with hs.record() as stats:
        assert hs.generate(target, **call, draft_model=None).tolist() == expected.tolist()
    assert not stats.num_calls


def test_a_generation_config_is_named_as_the_place_of_what_is_wrong(target, draft, monkeypatch):
    monkeypatch.setattr(draft.generation_config, "num_assistant_tokens", 0)
    with pytest.raises(ValueError, match=r"`generation_config\.num_assistant_tokens=0` drafts nothing"):
        ours(target, tiny.prompts(1), draft_model=draft)
    ours(target, tiny.prompts(1), draft_model=draft, num_draft_tokens=2)  # the call comes first


def test_nothing_is_written_to_any_config(target, draft):
    models = (target, draft)
    before = [(m.config.to_dict(), m.generation_config.to_dict()) for m in models]

    def failing(error):
        def process(input_ids, scores):
            if input_ids.shape[1] > 10:
                raise error
            return scores

        return process

    for schedule in ("constant", "heuristic"):
        ours(target, tiny.prompts(2), draft_model=draft, num_assistant_tokens_schedule=schedule, num_draft_tokens=3)
    for error in (RuntimeError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            ours(target, tiny.prompts(1), draft_model=draft, logits_processor=[failing(error)])
    assert [(m.config.to_dict(), m.generation_config.to_dict()) for m in models] == before
    # and both models still work
    assert ours(target, tiny.prompts(1), draft_model=draft).tolist() == plain(target, tiny.prompts(1)).tolist()
