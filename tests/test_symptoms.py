"""What users reported of other implementations, each symptom a test."""

import threading

import pytest
import tiny
import torch
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList, set_seed
from transformers.generation.streamers import BaseStreamer

import hf_speculative as hs
from hf_speculative.verification import SampledVerification, TokenVerification

NEW = 24


class Collect(BaseStreamer):
    def __init__(self):
        self.pieces, self.ended = [], False

    def put(self, value):
        self.pieces.append(value)

    def end(self):
        self.ended = True


@pytest.fixture
def twin(target):
    """A draft that is always right, so that every block is accepted whole."""
    return tiny.noisy_copy(target, noise=0)


def plain(model, inputs, **kwargs):
    return model.generate(**inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **kwargs)


def ours(model, inputs, **kwargs):
    return hs.generate(model, **inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **kwargs)


@pytest.mark.parametrize("as_list", [False, True])
def test_eos_inside_an_accepted_block(target, twin, as_list):
    inputs = tiny.prompts(1)
    new = plain(target, inputs)[0, 7:].tolist()
    for position in range(1, 9):
        eos = [1, new[position]] if as_list else new[position]
        expected = plain(target, inputs, eos_token_id=eos)
        assert (
            ours(target, inputs, draft_model=twin, num_draft_tokens=6, eos_token_id=eos).tolist() == expected.tolist()
        )


def test_eos_ends_each_row_on_its_own(target, draft):
    inputs = tiny.prompts(4)
    eos = plain(target, inputs)[1, 12].item()
    expected = plain(target, inputs, eos_token_id=eos)
    assert ours(target, inputs, draft_model=draft, eos_token_id=eos).tolist() == expected.tolist()


class LastToken(StoppingCriteria):
    def __init__(self, token):
        self.token, self.calls = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.calls.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def test_a_users_criterion_inside_an_accepted_block(target, twin):
    inputs = tiny.prompts(1)
    token = plain(target, inputs)[0, 9].item()
    criterion, streamer = LastToken(token), Collect()
    expected = plain(target, inputs, stopping_criteria=StoppingCriteriaList([LastToken(token)]))
    found = ours(
        target,
        inputs,
        draft_model=twin,
        num_draft_tokens=6,
        stopping_criteria=StoppingCriteriaList([criterion]),
        streamer=streamer,
    )
    assert found.tolist() == expected.tolist() and found.shape[1] < 7 + NEW
    assert torch.cat([piece.flatten() for piece in streamer.pieces]).tolist() == found[0].tolist()
    assert streamer.ended and criterion.calls == list(range(8, found.shape[1] + 1))


class FirstRowsOwn(StoppingCriteria):
    """Remembers by row, as lm-eval's criterion does: `done[i]` belongs to row i of the batch."""

    def __init__(self, token, batch_size):
        self.token, self.done = token, [False] * batch_size

    def __call__(self, input_ids, scores, **kwargs):
        for i in range(len(self.done)):
            self.done[i] = self.done[i] or input_ids[i, -1].item() == self.token
        return torch.tensor(self.done)


def test_a_criterion_with_a_memory_by_row(target, draft):
    inputs = tiny.prompts(3)
    token = plain(target, inputs)[1, 12].item()
    found = ours(target, inputs, draft_model=draft, stopping_criteria=[FirstRowsOwn(token, 3)]).tolist()
    for row, expected in enumerate(plain(target, inputs).tolist()):
        new = expected[7:]
        stop = new.index(token) + 1 if token in new else NEW
        assert found[row][7 : 7 + stop] == new[:stop]
        assert not any(found[row][7 + stop :])  # padding


@pytest.mark.parametrize("batch_size", [1, 3])
def test_stop_strings(batch_size):
    target, draft, tokenizer = hs.embedded_pair()
    texts = ["def add(a, b):\n", "import os, sys\n\n", "class A:\n    x = 1\n"][:batch_size]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True, padding_side="left"))
    kwargs = {"stop_strings": ["\n\n", "self.", "rn"], "tokenizer": tokenizer, "max_new_tokens": 48, "do_sample": False}
    expected = target.generate(**inputs, **kwargs)
    assert expected.shape[1] < inputs["input_ids"].shape[1] + 48
    assert hs.generate(target, **inputs, **kwargs, draft_model=draft, num_draft_tokens=6).tolist() == expected.tolist()


def test_stop_strings_from_the_generation_config():
    target, draft, tokenizer = hs.embedded_pair()
    target.generation_config.stop_strings = [":\n"]
    ids = tokenizer("def add(a, b", return_tensors="pt").input_ids
    expected = target.generate(ids, tokenizer=tokenizer, max_new_tokens=40, do_sample=False)
    found = hs.generate(target, ids, tokenizer=tokenizer, max_new_tokens=40, do_sample=False, draft_model=draft)
    assert found.tolist() == expected.tolist()
    assert target.generation_config.stop_strings == [":\n"]
    with pytest.raises(ValueError, match="pass `tokenizer=`"):
        hs.generate(target, ids, draft_model=draft)


def test_max_time_stops(target, draft):
    assert ours(target, tiny.prompts(1), draft_model=draft, max_time=0.0).shape[1] == 8


def test_a_filled_cache_from_an_earlier_turn(target, draft):
    """transformers 5.23 feeds all prompt tokens again on top of the cached ones."""
    first = tiny.prompts(1)
    turn = hs.generate(
        target, **first, draft_model=draft, do_sample=False, max_new_tokens=9, return_dict_in_generate=True
    )
    new = torch.tensor([[3, 4, 5]])
    inputs = {"input_ids": torch.cat([turn.sequences, new], 1)}
    expected = plain(target, inputs)
    with tiny.CountForwards(target) as forwards:
        found = ours(target, inputs, draft_model=draft, past_key_values=turn.past_key_values)
    assert found.tolist() == expected.tolist()
    assert forwards.lengths[0] == (1, 4)  # the last new token of turn one, and the three since
    assert turn.past_key_values.get_seq_length() == found.shape[1] - 1
    # Plain decoding can go on from it, too.
    longer = {"input_ids": torch.cat([found, new], 1)}
    again = target.generate(**longer, past_key_values=turn.past_key_values, do_sample=False, max_new_tokens=5)
    assert again.tolist() == target.generate(**longer, do_sample=False, max_new_tokens=5).tolist()


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text"])
def test_a_filled_cache_with_sliding_windows(model_type):
    model = tiny.build(model_type)
    draft = tiny.noisy_copy(model)
    turn = model.generate(**tiny.prompts(1, width=20), do_sample=False, max_new_tokens=9, return_dict_in_generate=True)
    inputs = {"input_ids": torch.cat([turn.sequences, torch.tensor([[3, 4, 5]])], 1)}
    found = ours(model, inputs, draft_model=draft, past_key_values=turn.past_key_values)
    assert found.tolist() == plain(model, inputs).tolist()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_sliding_window(attention):
    model = tiny.build("mistral", attention=attention)
    inputs = tiny.prompts(1, width=6)
    for kwargs in ({"draft_model": tiny.noisy_copy(model)}, {"draft_model": model}, {"prompt_lookup_num_tokens": 3}):
        found = hs.generate(model, **inputs, **kwargs, max_new_tokens=40, do_sample=False, pad_token_id=0)
        assert found.tolist() == model.generate(**inputs, max_new_tokens=40, do_sample=False, pad_token_id=0).tolist()


def test_prompt_lookup_without_eos(target):
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11, 7, 8]])}
    found = ours(target, inputs, prompt_lookup_num_tokens=3)
    assert found.tolist() == plain(target, inputs).tolist()


class Alternate(LogitsProcessor):
    """An automaton with a counter of its own: even and odd tokens in turn, with a period."""

    def __init__(self, period):
        self.period, self.step, self.widths = period, 0, []

    def __call__(self, input_ids, scores):
        self.widths.append(input_ids.shape[1])
        parity = (self.step // self.period) % 2
        self.step += 1
        scores[:, parity::2] = -torch.inf
        return scores


class AlternateWithRollback(Alternate):
    """The same, able to take calls back: never copied inside a round."""

    def rollback(self, num_calls):
        self.step -= num_calls

    def __deepcopy__(self, memo):
        raise AssertionError("copied")


class AlternateWithClone(Alternate):
    def clone(self):
        other = type(self)(self.period)
        other.step, other.widths = self.step, list(self.widths)
        return other

    __deepcopy__ = AlternateWithRollback.__deepcopy__


@pytest.mark.parametrize("kind", [Alternate, AlternateWithRollback, AlternateWithClone])
@pytest.mark.parametrize("source", ["draft", "lookup"])
@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_processor_with_a_memory(target, draft, period, source, kind):
    drafts = {"draft_model": draft} if source == "draft" else {"prompt_lookup_num_tokens": 3}
    inputs = tiny.prompts(1)
    expected = plain(target, inputs, logits_processor=[Alternate(period)])
    processor = kind(period)
    found = ours(target, inputs, logits_processor=[processor], **drafts)
    assert found.tolist() == expected.tolist()
    assert processor.step == NEW  # it moved on once per emitted token
    if kind is not AlternateWithRollback:
        assert processor.widths == list(range(7, 7 + NEW))  # and saw its prefixes in order


@pytest.mark.parametrize("period", [2, 3])
def test_a_processor_with_a_memory_in_a_batch(target, draft, period):
    inputs = tiny.prompts(3)
    expected = plain(target, inputs, logits_processor=[Alternate(period)])
    assert ours(target, inputs, logits_processor=[Alternate(period)], draft_model=draft).tolist() == expected.tolist()


class RowBias(LogitsProcessor):
    """Different rows of the call are treated differently."""

    def __call__(self, input_ids, scores):
        for row in range(scores.shape[0]):
            scores[row, 10 + row] += 50.0 if input_ids.shape[1] % 3 == 0 else 0.0
        return scores


def test_a_processor_that_knows_its_rows(target, draft):
    inputs = tiny.prompts(4)
    expected = plain(target, inputs, logits_processor=[RowBias()])
    assert ours(target, inputs, logits_processor=[RowBias()], draft_model=draft).tolist() == expected.tolist()


def test_prefix_allowed_tokens_fn_gets_its_batch_id(target, draft):
    def allowed(batch_id, ids):
        return [1 + batch_id, 10 + len(ids) % 5, int(ids[-1]) % 40 + 1]

    inputs = tiny.prompts(3)
    expected = plain(target, inputs, prefix_allowed_tokens_fn=allowed)
    found = ours(target, inputs, prefix_allowed_tokens_fn=allowed, draft_model=draft)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.8},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 20, "eos_token_id": 9},
        {"forced_eos_token_id": 9, "eos_token_id": 9},
        {"forced_bos_token_id": 9},
        {"exponential_decay_length_penalty": (5, 1.5), "eos_token_id": 9},
        {"bad_words_ids": [[3], [4, 5], [6, 7, 8]]},
        {"sequence_bias": [[[4], 3.0], [[5, 6], -8.0]]},
        {"suppress_tokens": [1, 2, 3], "begin_suppress_tokens": [4, 5]},
        {"encoder_repetition_penalty": 1.5},
        {"remove_invalid_values": True, "renormalize_logits": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_each_position_sees_its_own_prefix(target, draft, settings):
    for inputs in (tiny.prompts(1), tiny.prompts(3)):
        expected = plain(target, inputs, **settings)
        assert ours(target, inputs, draft_model=draft, **settings).tolist() == expected.tolist()
        sampled = inputs | settings | {"do_sample": True, "max_new_tokens": NEW, "pad_token_id": 0}
        set_seed(2)
        expected = target.generate(**sampled)
        set_seed(2)
        assert hs.generate(target, **sampled, draft_model=draft, reproducible=True).tolist() == expected.tolist()


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


def test_nothing_is_written_to_any_config(target, draft):
    models = (target, draft)
    before = [(m.config.to_dict(), m.generation_config.to_dict()) for m in models]

    class Fails(LogitsProcessor):
        def __init__(self, error):
            self.error, self.calls = error, 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            if self.calls > 3:
                raise self.error
            return scores

    for schedule in ("constant", "heuristic"):
        ours(target, tiny.prompts(2), draft_model=draft, num_assistant_tokens_schedule=schedule, num_draft_tokens=3)
    for error in (RuntimeError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            ours(target, tiny.prompts(1), draft_model=draft, logits_processor=[Fails(error)])
    assert [(m.config.to_dict(), m.generation_config.to_dict()) for m in models] == before
    # and both models still work
    assert ours(target, tiny.prompts(1), draft_model=draft).tolist() == plain(target, tiny.prompts(1)).tolist()


def test_beams_with_a_draft_are_refused(target, draft):
    with pytest.raises(ValueError, match="num_beams=2"):
        ours(target, tiny.prompts(1), draft_model=draft, num_beams=2)


def test_rows_of_a_batch_equal_their_own_runs(target, draft):
    """One draft is good for some rows and bad for others, and one row ends early."""
    inputs = tiny.prompts(5, width=9)
    eos = plain(target, inputs)[2, 12].item()
    with hs.record() as stats:
        batch = ours(target, inputs, draft_model=draft, eos_token_id=eos)
    accepted = [tuple(row.acceptance_histogram) for row in stats.rows]
    assert len(set(accepted)) > 2, "rows must have drifted apart"
    for row in range(5):
        alone = ours(target, tiny.unpadded(inputs, row), draft_model=draft, eos_token_id=eos)[0]
        new = alone[tiny.unpadded(inputs, row)["input_ids"].shape[1] :].tolist()
        assert batch[row, 9 : 9 + len(new)].tolist() == new and not batch[row, 9 + len(new) :].any()


def test_the_prompt_passes_in_the_same_shape_as_in_plain_generate(target, draft):
    for batch_size in (1, 3):
        inputs = tiny.prompts(batch_size)
        with tiny.CountForwards(target) as plain_forwards:
            plain(target, inputs)
        with tiny.CountForwards(target) as forwards:
            ours(target, inputs, draft_model=draft)
        assert forwards.lengths[0] == plain_forwards.lengths[0] == (batch_size, 7)


def test_streaming_puts_one_token_at_a_time(target, draft):
    streamer = Collect()
    out = ours(target, tiny.prompts(1), draft_model=draft, streamer=streamer)
    assert [tuple(piece.shape) for piece in streamer.pieces] == [(1, 7)] + [(1,)] * NEW
    assert torch.cat([piece.flatten() for piece in streamer.pieces]).tolist() == out[0].tolist() and streamer.ended


def test_streaming_a_batch(target, draft):
    """Steps come when every running row has reached them, with padding for rows that are done, as in plain generate."""
    inputs = tiny.prompts(3)
    eos = plain(target, inputs)[1, 10].item()
    streamer, reference = Collect(), Collect()
    out = ours(target, inputs, draft_model=draft, streamer=streamer, eos_token_id=eos)
    plain(target, inputs, streamer=reference, eos_token_id=eos)
    assert torch.stack(streamer.pieces[1:], 1).tolist() == out[:, 7:].tolist()
    assert [p.tolist() for p in streamer.pieces] == [p.tolist() for p in reference.pieces]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_two_devices():
    model = tiny.llama()
    draft = tiny.noisy_copy(model)
    for target_device, draft_device in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
        target = model.to(target_device)
        inputs = {name: value.to(target_device) for name, value in tiny.prompts(3).items()}
        found = ours(target, inputs, draft_model=draft.to(draft_device))
        assert found.tolist() == plain(target, inputs).tolist()


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("sampled", [False, True])
def test_scores_and_logits_parity(target, draft, batch_size, sampled):
    kwargs = tiny.prompts(batch_size) | {
        "max_new_tokens": NEW,
        "pad_token_id": 0,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.3,
        "do_sample": sampled,
    }
    set_seed(1)
    expected = target.generate(**kwargs)
    set_seed(1)
    found = hs.generate(target, **kwargs, draft_model=draft, **({"reproducible": True} if sampled else {}))
    assert found.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(found[name]) == len(expected[name]) == NEW
        for mine, theirs in zip(found[name], expected[name], strict=True):
            assert mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


# Found by review: each was wrong once


def test_a_draft_left_with_nothing_to_say_never_emits_what_is_forbidden():
    """Every allowed token is past the draft's vocabulary: its law was NaN, and token 0 came out."""
    target, narrow = tiny.llama(vocab_size=64), tiny.llama(vocab_size=61)
    out = hs.generate(
        target,
        **tiny.prompts(4),
        draft_model=narrow,
        do_sample=True,
        suppress_tokens=list(range(61)),
        max_new_tokens=40,
        pad_token_id=0,
    )
    assert out[:, 7:].min() >= 61


class Shared:
    """State that two processors share."""

    def __init__(self):
        self.calls = 0


class Counts(LogitsProcessor):
    def __init__(self, shared, step):
        self.shared, self.step = shared, step

    def __call__(self, input_ids, scores):
        self.shared.calls += self.step
        scores[:, self.shared.calls % 7 :: 7] = -torch.inf
        return scores


@pytest.mark.parametrize("batch_size", [1, 3])
def test_processors_that_share_a_memory(target, draft, batch_size):
    def processors():
        shared = Shared()
        return [Counts(shared, 1), Counts(shared, 2)]

    inputs = tiny.prompts(batch_size)
    expected = plain(target, inputs, logits_processor=processors())
    assert ours(target, inputs, logits_processor=processors(), draft_model=draft).tolist() == expected.tolist()


class KeepsHistory(LogitsProcessor):
    """A rollback in the natural spelling, which would forget everything if it were called with 0."""

    def __init__(self):
        self.history = []

    def rollback(self, num_calls):
        del self.history[-num_calls:]

    def __call__(self, input_ids, scores):
        self.history.append(int(input_ids[0, -1]))
        scores[:, sum(self.history) % 5 :: 5] = -torch.inf
        return scores


def test_rollback_is_never_called_with_0(target, draft):
    inputs = tiny.prompts(1)
    expected = plain(target, inputs, logits_processor=[KeepsHistory()])
    assert ours(target, inputs, logits_processor=[KeepsHistory()], draft_model=draft).tolist() == expected.tolist()


class StopButton(StoppingCriteria):
    def __init__(self):
        self.stop, self.lock = False, threading.Lock()  # a lock cannot be copied

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), self.stop)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_stop_button_pressed_from_outside(target, draft, batch_size):
    button = StopButton()

    class Presses(Collect):
        def put(self, value):
            super().put(value)
            button.stop |= len(self.pieces) > 5

    out = ours(target, tiny.prompts(batch_size), draft_model=draft, stopping_criteria=[button], streamer=Presses())
    assert out.shape[1] < 7 + NEW


def test_a_criterion_is_asked_about_the_last_token_too(target, draft):
    criterion = LastToken(-1)
    ours(target, tiny.prompts(1), draft_model=draft, stopping_criteria=[criterion])
    assert criterion.calls == list(range(8, 8 + NEW))


def test_int32_ids(target, draft):
    inputs = {name: value.int() for name, value in tiny.prompts(2).items()}
    assert ours(target, inputs, draft_model=draft).tolist() == plain(target, tiny.prompts(2)).tolist()


def test_a_cache_shorter_than_the_padding(target, draft):
    cache = target(torch.tensor([[0], [5]]), use_cache=True).past_key_values
    inputs = {
        "input_ids": torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
    }
    assert ours(target, inputs, draft_model=draft, past_key_values=cache).tolist() == plain(target, inputs).tolist()


def test_learned_positions_where_every_row_is_padded():
    model = tiny.build("gpt2", n_positions=32)
    inputs = {"input_ids": torch.randint(1, 60, (3, 24)), "attention_mask": torch.ones(3, 24, dtype=torch.long)}
    for row, pad in enumerate((16, 19, 22)):
        inputs["attention_mask"][row, :pad] = 0
    for num_draft_tokens in (5, 8):
        found = ours(model, inputs, draft_model=tiny.noisy_copy(model), num_draft_tokens=num_draft_tokens)
        assert found.tolist() == plain(model, inputs).tolist()


def test_num_return_sequences_beyond_the_drafts_context(target):
    short = tiny.build("gpt2", n_positions=8)
    settings = tiny.prompts(1, width=12) | {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 4}
    settings["pad_token_id"] = 0
    set_seed(0)
    expected = target.generate(**settings)
    set_seed(0)
    assert hs.generate(target, **settings, draft_model=short, reproducible=True).tolist() == expected.tolist()


def test_statistics_from_a_thread(target, draft):
    """The pattern of TextIteratorStreamer: generate runs in a thread of its own."""
    with hs.record() as stats:
        thread = threading.Thread(target=ours, args=(target, tiny.prompts(1)), kwargs={"draft_model": draft})
        thread.start()
        thread.join()
    assert stats.num_calls == 1


def nothing_after(token):
    """A grammar that has come to its end: after `token` nothing is allowed."""

    def ban(input_ids, scores):
        return scores.masked_fill((input_ids[:, -1:] == token), -torch.inf)

    return ban


@torch.no_grad()
def broken(model):
    """A model whose logits are NaN."""
    model = tiny.noisy_copy(model, noise=0)
    model.model.norm.weight[0] = torch.nan
    return model


SOURCES = {
    "block": lambda draft: {"draft_model": draft},
    "token": lambda draft: {"draft_model": draft, "speculative_config": hs.SpeculativeConfig(rule=TokenVerification())},
    "sampled": lambda draft: {
        "draft_model": draft,
        "speculative_config": hs.SpeculativeConfig(rule=SampledVerification()),
    },
    "reproducible": lambda draft: {"draft_model": draft, "reproducible": True},
    "prompt lookup": lambda draft: {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("source", SOURCES)
def test_no_distribution_to_draw_from(target, draft, source):
    """It came out as token 0; plain generate raises."""
    sampled = {"max_new_tokens": NEW, "pad_token_id": 0, "do_sample": True} | tiny.prompts(2)
    cases = {
        "logits are NaN": (broken(target), {}),
        "all is suppressed": (target, {"suppress_tokens": list(range(tiny.VOCAB))}),
        "a processor allows nothing": (target, {"logits_processor": [lambda ids, s: torch.full_like(s, -torch.inf)]}),
        "a logit is infinite": (
            target,
            {"logits_processor": [lambda ids, s: s.index_fill(1, torch.tensor(3), torch.inf)]},
        ),
    }
    for name, (model, settings) in cases.items():
        with pytest.raises(RuntimeError, match="probability tensor"):
            model.generate(**sampled, **settings)
        with pytest.raises(RuntimeError, match="row 0: there is no distribution to draw token 1 from"):
            pytest.fail(f"{name}: {hs.generate(model, **sampled, **settings, **SOURCES[source](draft))}")


def test_no_distribution_later_on(target, twin):
    """Where plain decoding gets there, and nowhere else: not past a stop, not after a draft token that is rejected."""
    sampled = {"max_new_tokens": NEW, "pad_token_id": 0, "do_sample": True, "top_k": 4} | tiny.prompts(1)
    set_seed(1)
    said = target.generate(**sampled)[0, 7:].tolist()
    token = next(token for i, token in enumerate(said) if i > 3 and token not in said[:i])
    settings = sampled | {"reproducible": True, "draft_model": twin, "num_draft_tokens": 6}
    ban, criterion = {"logits_processor": [nothing_after(token)]}, LastToken(token)
    set_seed(1)
    with pytest.raises(RuntimeError, match=f"draw token {said.index(token) + 2} from"):
        hs.generate(target, **settings, **ban)
    for stop in ({"eos_token_id": token}, {"stopping_criteria": [criterion]}):
        set_seed(1)
        assert hs.generate(target, **settings, **ban, **stop)[0, 7:].tolist() == said[: said.index(token) + 1]
    assert max(criterion.calls) == 7 + said.index(token) + 1, "asked about no token that there is not"
    unsaid = next(token for token in range(1, tiny.VOCAB) if token not in said)
    set_seed(1)
    assert hs.generate(target, **settings, logits_processor=[nothing_after(unsaid)])[0, 7:].tolist() == said


def test_argmax_of_nothing(target, draft):
    """Greedy decoding takes the argmax of NaN, too."""
    inputs = tiny.prompts(2)
    for model, settings in ((broken(target), {}), (target, {"suppress_tokens": list(range(tiny.VOCAB))})):
        assert ours(model, inputs, draft_model=draft, **settings).tolist() == plain(model, inputs, **settings).tolist()


def test_no_distribution_in_a_batch_keeps_what_is_done(target, draft):
    prompts = [[3, 4, 5], [6, 7, 8, 9]]
    first, second = (plain(target, {"input_ids": torch.tensor([ids])})[0, len(ids) :][:8].tolist() for ids in prompts)
    token = next(token for token in second[:-1] if token not in first)
    done = []
    with pytest.raises(RuntimeError, match="row 1: there is no distribution"):
        for completion in hs.generate_batches(
            target,
            prompts,
            batch_size=1,
            max_new_tokens=8,
            do_sample=True,
            top_k=1,
            draft_model=draft,
            logits_processor=[nothing_after(token)],
        ):
            done.append(completion.index)
    assert done == [0]


@pytest.mark.parametrize("source", SOURCES)
def test_a_broken_draft_breaks_nothing(target, source):
    """A draft whose logits are NaN guesses at random."""
    draft, settings = broken(target), SOURCES[source]
    inputs = tiny.prompts(3)
    assert ours(target, inputs, **settings(draft)).tolist() == plain(target, inputs).tolist()
    out = hs.generate(target, **inputs, do_sample=True, top_k=1, max_new_tokens=NEW, pad_token_id=0, **settings(draft))
    assert out.tolist() == plain(target, inputs).tolist()


class Raises(StoppingCriteria, BaseStreamer, hs.Drafter, hs.Schedule, hs.Rule):
    """Raises `error` in whatever place it is put."""

    lossless = True

    def __init__(self, error):
        self.error = error

    def __call__(self, *args, **kwargs):
        raise self.error

    put = propose = plan = __call__


@pytest.mark.parametrize("place", ["logits_processor", "stopping_criteria", "streamer", "drafter", "schedule", "rule"])
@pytest.mark.parametrize("error", [StopIteration("the user's"), RuntimeError("the user's")], ids=["stop", "other"])
def test_errors_of_the_users_are_shown_as_they_are(target, draft, place, error):
    """A generator may not raise StopIteration, and Python makes another error of it."""
    part = Raises(error)
    if place in ("drafter", "schedule", "rule"):
        settings = {"speculative_config": hs.SpeculativeConfig(**{place: part})}
        settings |= {} if place == "drafter" else {"draft_model": draft}
    else:
        settings = {place: part if place == "streamer" else [part], "draft_model": draft}
    with hs.record(), pytest.raises(type(error), match="the user's"):
        ours(target, tiny.prompts(1), **settings)
    # and both models still work
    assert ours(target, tiny.prompts(1), draft_model=draft).tolist() == plain(target, tiny.prompts(1)).tolist()
