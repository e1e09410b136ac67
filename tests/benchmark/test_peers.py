"""Peers in the bench: another package's texts are compared with plain decoding's, and a missing one is named."""

import pytest

from hf_speculative import benchmark
from hf_speculative.benchmark import Method, methods, peers, wording


def peer(generate):
    return Method("peer", generate, "another package", package="torch")


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_its_tokens_are_compared(target, draft, num_wrong):
    def generate(pair, cell, call):
        found = pair.target.generate(**call)
        found[:num_wrong, -1] += 1
        return found

    cells = benchmark.sweep(batch=[2], num_draft_tokens=[2], context=[8], acceptance=[None], temperature=[0.0])
    pair = benchmark.Pair(target, draft, "tiny")
    report = benchmark.run(pair, cells, methods=[peer(generate)], num_new_tokens=8, repeats=1)
    assert report.cells[0].methods["peer"].num_equal_rows == 2 - num_wrong
    note = f"peer: the tokens of {2 - num_wrong} of 2 rows are plain decoding's."
    assert note in wording.notes(report.cells[0])
    assert report.cells[0].methods["plain"].num_equal_rows is None


def test_one_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'economize' cannot be measured: it needs economize: pip install"):
        methods.chosen_methods(["economize"])
