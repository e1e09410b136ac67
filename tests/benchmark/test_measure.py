"""The benchmark measures what it says: which methods, what is timed, and what a cell that fails leaves."""

import dataclasses
import re

import pytest
import torch

import hf_speculative as hs
from hf_speculative import benchmark
from hf_speculative.benchmark import measure, methods, passes, shapes
from hf_speculative.call.statistics import STAGES, Statistics, publish
from hf_speculative.models.packing import are_packed
from tests.support import tiny

TINY = shapes.SHAPES["tiny"]


def test_all_methods_in_one_run(pair, ticking):
    before = pair.draft.generation_config.to_dict()
    watched = []
    report = benchmark.run(
        pair,
        [benchmark.Cell(acceptance=1.0, context=16), benchmark.Cell(acceptance=1.0, context=16, batch=2)],
        methods=["assisted", "assisted-default", "speculative", "speculative-auto", "no-draft-auto"],
        num_new_tokens=24,
        repeats=2,
        watch=lambda what, done, total: watched.append((done, total)),
    )
    one, two = report.cells
    assert list(one.methods) == [
        "plain",
        "assisted",
        "assisted-default",
        "speculative",
        "speculative-auto",
        "no-draft-auto",
    ]
    assert list(two.methods) == [
        "plain",
        "speculative",
        "speculative-auto",
        "no-draft-auto",
    ]  # assisted takes one row only
    assert [done for done, _ in watched] == list(range(watched[0][1]))
    for cell in report.cells:
        own = cell.methods["speculative"]
        assert len(own.samples) == 2 and all(sample.num_tokens == 18 * cell.cell.batch for sample in own.samples)
        assert own.statistics.draft_acceptance_rate > 0.95
        assert 4 <= own.tokens_per_pass <= 5.2 and cell.methods["plain"].tokens_per_pass == 1
        assert sum(own.stage_seconds().values()) == pytest.approx(own.round_seconds) and cell.theory("speculative") > 0
    call = measure.Call(pair, one.cell, methods.METHODS["assisted"], 24, seed=0)
    assert call.num_passes == 5  # 5 tokens each, passes of the draft not among them
    assert pair.draft.generation_config.to_dict() == before


def test_a_method_of_one_s_own_and_a_cell_that_fails(pair, steady):
    def generate(pair, cell, call):
        if cell.batch == 2:
            raise torch.OutOfMemoryError("no room")
        return pair.target.generate(**call, use_cache=False)

    own = benchmark.Method("uncached", generate, "without a cache", is_speculative=False)
    cells = benchmark.sweep(batch=[1, 2, 3], context=[8], acceptance=[1.0])
    report = benchmark.run(pair, cells, methods=[own], num_new_tokens=8, repeats=1)
    assert [cell.cell.batch for cell in report.cells] == [1, 3]
    assert report.failures == {str(cells[1]): "no room"}
    assert report.cells[0].speedup("uncached").median == 1


def test_packed_weights_are_of_copies(pair, monkeypatch):
    """The pair keeps its plain weights, and other weights are packed anew."""
    attach, attached = hs.generation.attach, []

    def without_compiling(target, draft, config):
        assert config.compile is True and config.pack_weights == "auto"
        attached.append(target)
        return attach(target, draft, config=hs.SpeculativeConfig(pack_weights=True))

    monkeypatch.setattr(hs.generation, "attach", without_compiling)
    cells = benchmark.sweep(batch=[1], context=[8], acceptance=[1.0, 0.0], num_draft_tokens=[2], temperature=[0.0])
    names = ["speculative-packed", "plain-packed"]
    report = benchmark.run(pair, cells, methods=names, num_new_tokens=8, repeats=1)
    assert len(attached) == 2 and are_packed(attached[1]) and not are_packed(pair.target)
    own, plain = (report.cells[0].methods[name] for name in names)
    assert own.statistics.num_draft_tokens > 0 and not plain.statistics.num_rounds
    ids = pair.prompts(1, 8)
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    texts = [methods.METHODS[name].generate(pair, cells[1], call) for name in (*names, "plain")]
    assert torch.equal(texts[0], texts[2]) and torch.equal(texts[1], texts[2])


def test_passes_beyond_a_window_are_timed():
    model = tiny.build("mistral", sliding_window=8)
    cell = benchmark.Cell(num_draft_tokens=3, context=16)
    timer = passes.PassTimer(benchmark.Pair(model, tiny.noisy_copy(model), name="windows"), cell, num_cached=20)
    timer.measure()
    assert len(timer.passes.verify) == 3 and timer.target.cache.get_seq_length() == 20


def test_end_tokens_do_not_end_a_text_early():
    target, draft, tokenizer = hs.embedded_pair()
    pair = benchmark.Pair(target, draft, "embedded", tokenizer)
    assert pair.prompts(2, 10).tolist() != pair.prompts(2, 11)[:, 1:].tolist()
    target.generation_config.eos_token_id = list(range(pair.target.config.vocab_size))[:2000]
    report = benchmark.run(pair, [benchmark.Cell(context=10, batch=2)], ["speculative"], num_new_tokens=8, repeats=1)
    assert report.cells[0].methods["speculative"].statistics.num_new_tokens == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_new_tokens": 4}, "`num_new_tokens=4`"),
        ({"repeats": 0}, "`repeats=0`"),
        ({"cells": [benchmark.Cell(num_draft_tokens=48, acceptance=1.0)]}, "too few for `num_draft_tokens=48`"),
        ({"methods": ["fast"]}, "'fast' is not known: choose from plain"),
        ({"cells": [benchmark.Cell()]}, "say how much to accept"),
        ({"cells": [benchmark.Cell(context=200000, acceptance=1.0)]}, "tiny takes 131072"),
    ],
)
def test_bad_settings_are_refused(pair, arguments, message):
    cells = arguments.pop("cells", [benchmark.Cell(acceptance=1.0)])
    with pytest.raises(ValueError, match=re.escape(message)):
        benchmark.run(pair, cells, **arguments)


def test_an_interrupted_cell_keeps_its_complete_repeats(pair):
    calls = []

    def interrupted(pair, cell, call):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return pair.target.generate(**call)

    own = dataclasses.replace(methods.PLAIN, name="own", generate=interrupted)
    report = benchmark.run(pair, [benchmark.Cell(acceptance=1.0, context=8)], [own], num_new_tokens=8, repeats=3)
    assert report.is_interrupted and [len(m.samples) for m in report.cells[0].methods.values()] == [1, 1]


def test_nothing_is_timed_but_decoding(pair, monkeypatch):
    """Prompt and set-up drop out: a call that takes a second longer for them measures the same."""
    durations = iter([3.0, 1.5])  # the long call, then the short one, each with 1 s of set-up
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), next(durations)))
    long, short = (measure.Call(pair, benchmark.Cell(context=8), methods.PLAIN, n, seed=0) for n in (16, 4))
    sample = long.less(short)
    assert (sample.seconds, sample.call_seconds, sample.num_tokens, sample.num_rounds) == (1.5, 3.0, 12, 12)


def test_measuring_costs_is_not_timed(pair, monkeypatch):
    monkeypatch.setattr(measure, "timed", lambda function, device: (function(), 5.0))
    seconds = dict.fromkeys(STAGES, 0.0) | {"probe": 2.0}
    own = benchmark.Method("own", lambda *args: publish(Statistics(seconds=seconds)), "says what it measured")
    assert measure.Call(pair, benchmark.Cell(context=8), own, 16, seed=0).seconds == 3.0
