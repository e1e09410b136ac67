"""Two generators on one machine, in turns."""

import threading

import pytest
import torch

from hf_speculative.playground.turns import Runner, in_turns, stepwise

CPU = torch.device("cpu")


def counting(number):
    def generate(streamer):
        streamer.put(torch.tensor([[1, 2]]))  # the prompt
        for token in range(number):
            streamer.put(torch.tensor([token]))
        streamer.end()

    return generate


def test_all_tokens_but_the_prompt_come_one_at_a_time():
    assert list(stepwise(counting(3))) == [[0], [1], [2]]


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


def test_an_error_is_whose_turn_it_is():
    def generate(streamer):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        next(stepwise(generate))


class Slow(Runner):
    """Takes so much time for each step, without taking any."""

    def __init__(self, steps, cost):
        super().__init__(steps, 0, CPU)
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


def test_ending_early_ends_both():
    ended = []

    def steps(name):
        try:
            while True:
                yield name
        finally:
            ended.append(name)

    turns = in_turns([Runner(steps("a"), 0, CPU), Runner(steps("b"), 0, CPU)])
    assert {next(turns)[1] for _ in range(20)} <= {"a", "b"}
    turns.close()
    assert "a" in ended


def test_random_numbers_are_those_of_each_alone():
    def draws():
        for _ in range(4):
            yield torch.rand(1).item()

    def alone(seed):
        torch.manual_seed(seed)
        return list(draws())

    expected = {number: alone(seed) for number, seed in enumerate((1, 2))}
    before = torch.get_rng_state()
    found = {0: [], 1: []}
    for number, step in in_turns([Runner(draws(), 1, CPU), Runner(draws(), 2, CPU)]):
        found[number].append(step)
    assert found == expected and torch.equal(torch.get_rng_state(), before)
