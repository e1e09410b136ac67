"""The table of costs: what calls of a kind have in common, what is assumed, and the file that keeps it."""

import gc
import json

import pytest
import torch

import hf_speculative as hs
from hf_speculative.call import measured_costs as costs
from hf_speculative.call.measured_costs import SETTLED, CostTable, assumed_column
from hf_speculative.schedules import Adaptive, Constant
from hf_speculative.types import Costs
from tests.support import tiny

pytestmark = pytest.mark.measures
KWARGS = {"max_new_tokens": 40, "pad_token_id": 0, "do_sample": False}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Nothing is known, in memory or on disk."""
    monkeypatch.setattr(costs, "_known", type(costs._known)())
    monkeypatch.setattr(costs, "folder", lambda: tmp_path / "passes")
    return tmp_path / "passes"


@pytest.fixture
def pair():
    target = tiny.llama()
    return target, tiny.noisy_copy(target, noise=0.1)


def call(target, draft, batch_size=1, **kwargs):
    with hs.record() as stats:
        found = hs.generate(target, **tiny.prompts(batch_size), draft_model=draft, **KWARGS | kwargs)
    return found.tolist(), stats


def tables(target):
    return [table for kinds in costs._known[target].values() for table in kinds.values()]


def table_of(cells=(), level=0.1):
    table = CostTable(lambda rows: 0.05 * rows, level)
    for cell, ratio in dict(cells).items():
        table.add(cell, ratio)
    return table


def test_what_was_not_measured_is_assumed():
    table = table_of()
    assert table.costs(1).curve(1, 4) == pytest.approx([1 + 0.15 * n for n in range(5)])
    assert table.costs(8).curve(8, 2) == pytest.approx([1 + 0.5 * n for n in range(3)])
    assert table.costs(1, guesses=True).curve(1, 4)[4] == pytest.approx(1.2)
    on_cpu, elsewhere = (assumed_column(32, torch.device(name)) for name in ("cpu", "meta"))
    assert on_cpu == 0.5 and elsewhere < 0.2


def test_costs_follow_the_lines_between_what_was_measured():
    table = table_of({("pass", 1, 3): 1.4, ("pass", 1, 5): 1.6, ("draft", 1, 4): 0.2})
    passes = [table.ratio("pass", 1, n) for n in range(1, 10)]
    assert passes == pytest.approx([1, 1.2, 1.4, 1.5, 1.6, 1.675, 1.75, 1.825, 1.9]), "beyond them, half of the mean"
    assert [table.ratio("draft", 1, n) for n in (2, 4, 8)] == pytest.approx([0.1, 0.2, 0.3])
    table.add(("pass", 1, 9), 1.3)
    assert table.ratio("pass", 1, 5) == 1.3 and table.ratio("pass", 1, 3) == 1.3, "less for more is noise"


def test_trees_pay_for_their_levels_and_their_nodes():
    found = table_of({("pass", 1, 9): 1.8, ("draft", 1, 2): 0.4}).costs(1, branches=True)
    assert found.tree_curve(1, 1, 8)[8] == pytest.approx(1.8 + 0.2)
    assert found.tree_curve(1, 4, 8)[8] == pytest.approx(1.8 + 0.4 + 2 * 0.1, abs=0.05)
    assert not table_of().costs(1).trees


def test_one_busy_moment_does_not_change_what_is_known():
    table = table_of()
    for ratio in (1.5, 9.0, 1.5, 1.5):
        table.add(("pass", 1, 2), ratio)
    assert table.ratio("pass", 1, 2) == 1.5
    for _ in range(SETTLED):
        table.add(("pass", 1, 2), 2.0)
    assert table.ratio("pass", 1, 2) == 2.0 and len(table.cells["pass", 1, 2]) == SETTLED


def test_fewer_rows_take_no_longer():
    """One row was timed while the machine was slower."""
    found = table_of({("step", 1, 1): 3.0, ("step", 8, 1): 2.0}).costs(1)
    assert found.curve(1, 0) == [2.0] and found.curve(8, 0) == [2.0]


def test_a_process_begins_with_what_the_last_one_knew(pair, folder):
    call(*pair)
    (table,) = tables(pair[0])
    (file,) = folder.glob("costs-*.json")
    assert table.cells and file == table.path
    costs._known.clear()  # as in a new process
    again = call(*pair)[0]
    (read,) = tables(pair[0])
    assert {*table.cells} <= {*read.cells} and [*folder.iterdir()] == [file]
    assert again == pair[0].generate(**tiny.prompts(1), **KWARGS).tolist()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '[["pass", 1, 2, [0.0]]]', '[["pass", 1, 2, ["a"]]]', "null"])
def test_a_damaged_file_is_told_and_measured_anew(pair, folder, text):
    call(*pair)
    (file,) = folder.glob("costs-*.json")
    file.write_text(text)
    costs._known.clear()
    with pytest.warns(UserWarning, match="is damaged, and costs of rounds are measured anew"):
        call(*pair)
    assert json.loads(file.read_text()), "the next process finds a sound one"


def test_a_folder_that_cannot_be_written_is_told_once(pair, folder):
    folder.write_text("a file in its place")
    with pytest.warns(UserWarning, match="costs of rounds are kept in this process only") as told:
        expected = call(*pair)[0]
        assert call(*pair)[0] == expected
    assert len(told) == 1 and tables(pair[0])[0].cells


def test_kinds_of_calls_are_known_apart(pair, monkeypatch):
    for kwargs in ({}, {"do_sample": True}, {"do_sample": True, "top_k": 0}):
        call(*pair, **kwargs)
    call(*pair, batch_size=2)
    assert len(tables(pair[0])) == 3 and len({table.path for table in tables(pair[0])}) == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    call(*pair)
    call(pair[0], tiny.llama(seed=1, layers=1))
    assert len({table.path for table in tables(pair[0])}) == 5


def test_a_constant_length_or_given_costs_measure_nothing(pair, folder):
    given = [Constant(2), Adaptive(costs=Costs({1: {0: 1.0, 1: 1.1}}))]
    own = [{"speculative_config": hs.SpeculativeConfig(schedule=schedule)} for schedule in given]
    for settings in ({"num_draft_tokens": 3}, {"num_assistant_tokens_schedule": "heuristic"}, *own):
        assert call(*pair, **settings)[1].num_draft_tokens > 0
    assert pair[0] not in costs._known and not folder.exists()


def test_costs_go_with_the_model():
    target = tiny.llama()
    call(target, tiny.llama(seed=1, layers=1))
    assert len(costs._known) == 1
    del target
    gc.collect()
    assert len(costs._known) == 0


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "reproducible": True}])
@pytest.mark.parametrize("source", ["draft", "auto", "both"])
def test_the_default_length_gives_plain_tokens_whatever_the_clock_says(pair, source, sampling):
    """The real thing: nothing is replaced, and each call goes by what this machine took."""
    target, draft = pair
    source = {"draft": draft, "auto": "auto", "both": [draft, "auto"]}[source]
    for batch_size in (1, 3, 1, 1):
        torch.manual_seed(5)
        plain = target.generate(**tiny.prompts(batch_size), **KWARGS | {"do_sample": sampling["do_sample"]}).tolist()
        torch.manual_seed(5)
        assert call(target, source, batch_size, **sampling)[0] == plain
