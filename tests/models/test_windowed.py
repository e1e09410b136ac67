"""Draft models that read a window of the text: what they say of it, and how much they read and keep."""

from types import SimpleNamespace

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from hf_speculative.call.sources import source_of
from hf_speculative.drafting import DraftModel, DynamicTreeDrafter
from hf_speculative.drafting.draft_model import ROOM
from hf_speculative.models import RaggedModel, WindowedModel
from hf_speculative.models.windowed import NUM_FIRST
from hf_speculative.types import Batch, Costs
from tests.architectures.check import build, prompts as inputs_of
from tests.support import tiny, tongues
from tests.support.cases import slow_but
from tests.support.compared import compared
from tests.support.plain import reproduces_plain, same_as_plain, takes_lanes
from tests.support.served import PATIENCE, alone, running, submit

WINDOW = 16
LONG = {"max_new_tokens": 60}


def compared_in_window(model) -> DraftModel:
    """A drafter that is held to fresh passes over the first tokens and those that were not skipped."""

    class Watched(DraftModel):
        def step(self, batch, ahead):
            self.rows = {id(text): row for row, text in enumerate(batch.history)}
            return super().step(batch, ahead)

    def fresh(text, path):
        skipped = drafter.model.skipped[drafter.rows[id(text)]]
        assert len(text) - skipped <= WINDOW and (skipped or len(text) <= WINDOW)
        read = text[:NUM_FIRST] + text[NUM_FIRST + skipped :] + path
        return model(torch.tensor([read])).logits[0, -1]

    drafter = compared(Watched, fresh)(WindowedModel(RaggedModel(model), WINDOW))
    return drafter


@pytest.mark.parametrize(("architecture", "grows"), [("gpt2", "chains"), ("gpt2", "trees"), ("mistral", "trees")])
@torch.no_grad()
def test_it_says_what_a_pass_over_its_window_says(architecture, grows):
    model = tiny.build(architecture)
    watched = compared_in_window(tiny.noisy_copy(model, 0.05))
    drafter = watched if grows == "chains" else DynamicTreeDrafter(watched, top_k=2, depth=3)
    stats = same_as_plain(model, tiny.prompts(3, width=20), LONG, draft_model=drafter, num_draft_tokens=4)
    assert watched.num_steps > 20 and stats.num_accepted_draft_tokens > 0
    assert grows == "chains" or watched.num_levels > 10


def test_a_view_of_a_long_text_is_as_wide_as_a_window():
    batch = Batch(torch.ones(1, 5000, dtype=torch.long), [0], 6000)
    batch.reserve(9000)
    view = WindowedModel(RaggedModel(tiny.llama()), 64)._moved(batch, ahead=3)
    assert view.tokens.shape[1] == (64 + NUM_FIRST) // 2 + 3


def test_a_server_gives_later_requests_a_window_too():
    """The first one is shorter than any."""
    target, draft = tiny.llama(positions=512), tiny.llama(positions=512)
    texts = [tiny.texts(1)[0], tiny.prompts(1, width=300)["input_ids"][0].tolist()]
    call = {"draft_model": draft, "num_draft_tokens": 3, "speculative_config": hs.SpeculativeConfig(draft_window=64)}
    with running(target, max_lanes=2, **call) as engine, tiny.CountForwards(draft) as forwards:
        answers, settings = [], {"max_new_tokens": 50, "do_sample": False}
        for text in texts:
            answers.append(submit(engine, text, **settings))
            answers[0].has_begun.wait(PATIENCE)
        for text, answer in zip(texts, answers, strict=True):
            assert answer.wait() == alone(target, text, **settings)
    assert max(width for _, width in forwards.lengths) <= (64 + NUM_FIRST) // 2


def test_its_cache_and_its_passes_do_not_grow():
    model, draft = tiny.llama(positions=512), tiny.llama(positions=512)
    prompt = tiny.prompts(1, width=300)
    with tiny.CountForwards(draft) as forwards:
        same_as_plain(model, prompt, LONG, draft_model=draft, num_draft_tokens=3, draft_window=64)
    widths = [width for _, width in forwards.lengths]
    assert widths[0] == max(widths) == (64 + NUM_FIRST) // 2, "of a prompt no more than is kept"
    assert 1 <= sum(width > 8 for width in widths[1:]) <= 60 // 30, "read again once a half window"


def test_rows_that_take_the_place_of_others_and_sampled_tokens():
    model = tiny.llama()
    draft = {"draft_model": tiny.noisy_copy(model), "num_draft_tokens": 3, "draft_window": WINDOW}
    assert takes_lanes(model, tiny.texts(9, width=30), **draft).num_accepted_draft_tokens > 0
    reproduces_plain(model, settings={"max_new_tokens": 40}, **draft)


@pytest.mark.parametrize("mapping", slow_but(["intersection", "strings"], "strings"))
def test_drafts_with_another_tokenizer(mapping):
    target, draft, tokenizer = tongues.pair()
    other = tongues.renumbered(tokenizer)
    given = tongues.speaking(tongues.moved(draft, tokenizer, other), tokenizer, other, mapping, draft_window=WINDOW)
    prompts = tokenizer(["def add(a, b):\n", "import os\n"], return_tensors="pt", padding=True)
    stats = same_as_plain(target, dict(prompts), LONG, **given, num_draft_tokens=3)
    assert stats.draft_acceptance_rate > 0.2


def test_a_text_longer_than_the_draft_takes_is_drafted_to_its_end():
    target, short = tiny.build("gpt2", n_positions=256), tiny.build("gpt2", n_positions=2 * ROOM)
    state = target.state_dict()
    short.load_state_dict(state | {"transformer.wpe.weight": state["transformer.wpe.weight"][: 2 * ROOM]})
    prompt, num_new = tiny.prompts(1, width=90), 150
    with hs.record() as stats:
        found = hs.generate(target, **prompt, draft_model=short, num_draft_tokens=3, max_new_tokens=num_new)
    assert found.tolist() == target.generate(**prompt, max_new_tokens=num_new).tolist()
    assert stats.num_spec_steps >= stats.num_rounds - 2  # the last ones have no room for a draft


def test_costs_and_acceptance_are_those_of_its_window():
    draft = tiny.llama()
    whole, wide, narrow = (source_of("draft_model", draft, {"draft_window": n}) for n in (None, 64, 16))
    assert len({source.cost_key for source in (whole, wide, narrow)}) == 3


def test_a_long_prompt_is_expected_to_take_no_longer_than_a_window():
    source, costs = source_of("draft_model", tiny.llama(), {"draft_window": 32}), Costs(1.0, 0.5)
    schedule, batch = source.adaptive_schedule(4, True), SimpleNamespace(prompt_width=10_000, max_length=10_100)
    schedule.begin(batch, lambda num_rows: costs)
    assert schedule._first(costs) == 0.5 * 32


def test_windows_that_no_draft_has():
    target, prompt = tiny.llama(), tiny.prompts(1)
    short = tiny.llama(positions=64)
    for draft, window, why in (
        (target, 8, "16 or more"),
        (target, 100, f"takes, 128 tokens with {ROOM} for drafts: give at most 64"),
        (short, 16, "takes, 64 tokens .*: leave it out"),
    ):
        with pytest.raises(ValueError, match=f"`draft_window={window}`.*{why}"):
            hs.generate(target, **prompt, draft_model=draft, **as_keywords({"draft_window": window}))
    with pytest.raises(ValueError, match="`draft_window=32` has no effect on drafts by"):
        hs.generate(target, **prompt, draft_model="suffix", **as_keywords({"draft_window": 32}))
    model = build("seq2seq", "t5")
    with pytest.raises(ValueError, match=r"`draft_window=32` has no effect in this call.*universal path"):
        same_as_plain(model, inputs_of("seq2seq", model, 1), draft_model=model, draft_window=32)
    hs.attach(model, model, config=hs.SpeculativeConfig(draft_window=32))  # of which other calls may have use
    model.generate(**inputs_of("seq2seq", model, 1), max_new_tokens=4)
