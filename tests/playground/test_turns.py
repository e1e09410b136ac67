"""Two generators on one machine, in turns."""

from hf_speculative.playground.turns import Timed, in_turns


class Slow(Timed):
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


def test_ending_early_ends_both():
    ended = []

    def steps(name):
        try:
            while True:
                yield name
        finally:
            ended.append(name)

    turns = in_turns([Timed(steps("a")), Timed(steps("b"))])
    assert {next(turns)[1] for _ in range(20)} <= {"a", "b"}
    turns.close()
    assert "a" in ended
