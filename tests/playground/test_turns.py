"""Two generators on one machine, in turns."""

import threading

import torch

from hf_speculative.playground.turns import Runner, in_turns, stepwise


def test_nothing_runs_that_nobody_asks_for():
    made = []

    def generate(streamer):
        streamer.put(torch.tensor([[1]]))
        for token in range(9):
            made.append(token)
            streamer.put(torch.tensor([token]))

    steps = stepwise(generate)
    assert [next(steps), next(steps)] == [[0], [1]] and made == [0, 1]
    num_threads = threading.active_count()
    steps.close()
    assert made == [0, 1] and threading.active_count() == num_threads - 1


class Slow(Runner):
    """Takes so much time for each step, without taking any."""

    def __init__(self, steps, cost):
        super().__init__(steps)
        self.cost, self.time = cost, 0.0

    @property
    def seconds(self):
        return getattr(self, "time", 0.0)

    @seconds.setter
    def seconds(self, value):
        pass

    def __next__(self):
        self.time += self.cost
        return next(self.steps)


def test_who_has_had_least_time_is_next():
    runners = [Slow(iter("abcd"), 1.0), Slow(iter("AB"), 2.5)]
    runners[0].close = runners[1].close = lambda: None
    assert "".join(step for _, step in in_turns(runners)) == "aAbcBd"
