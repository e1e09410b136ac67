"""Two generators on one machine, in turns."""

import threading
from types import SimpleNamespace

import torch

from hf_speculative.playground import turns


def test_nothing_runs_that_nobody_asks_for():
    made = []

    def generate(streamer):
        streamer.put(torch.tensor([[1]]))
        for token in range(9):
            made.append(token)
            streamer.put(torch.tensor([token]))

    steps = turns.stepwise(generate)
    assert [next(steps), next(steps)] == [[0], [1]] and made == [0, 1]
    num_threads = threading.active_count()
    steps.close()
    assert made == [0, 1] and threading.active_count() == num_threads - 1


def test_who_has_had_least_time_is_next(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def steps(letters, cost):
        for letter in letters:
            clock[0] += cost
            yield letter

    found = list(turns.in_turns([steps("abcd", 1.0), steps("AB", 2.5)]))
    assert "".join(step for _, _, step in found) == "aAbcBd"
    assert [seconds for number, seconds, _ in found if number == 1] == [2.5, 5.0]
