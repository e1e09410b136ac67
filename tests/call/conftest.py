"""A clock that only passes of the models move, so that nothing depends on this machine."""

from types import SimpleNamespace

import pytest

from hf_speculative.call import measured_costs as costs
from hf_speculative.call import online_costs, timings
from tests.support import tiny


@pytest.fixture(scope="module")
def small():
    """A target that is dear beside its draft."""
    return tiny.llama(layers=4, hidden=64), tiny.llama(seed=1, layers=1, hidden=16)


class Machine:
    """A clock that passes of a target and its draft move.

    Args:
        step: seconds of a plain step.
        draft: seconds of a draft token, of a second column in a target pass, and of each column, in plain steps.
    """

    def __init__(self, target, draft=None, *, step=1.0, draft_step=0.1, jump=0.0, column=0.03):
        self.seconds, self.num_passes, self.step, self.slow_from, self.slowness = 0.0, 0, step, None, 1.0

        def run(seconds):
            self.num_passes += 1
            if self.slow_from is not None and self.num_passes >= self.slow_from:
                seconds *= self.slowness
            self.seconds += seconds * self.step

        def target_pass(module, args, kwargs):
            width = kwargs["input_ids"].shape[1]
            run(1 + (jump if width > 1 else 0) + column * (width - 1))

        self.hooks = [target.register_forward_pre_hook(target_pass, with_kwargs=True)]
        if draft is not None:
            self.hooks.append(draft.register_forward_pre_hook(lambda module, args: run(draft_step)))
        self.curve = [1 + bool(n) * jump + n * (draft_step + column) for n in range(17)]  # of true costs

    def get_busy(self, after, slowness):
        """So many times as slow, from a number of passes from now on."""
        self.slow_from, self.slowness = self.num_passes + after, slowness


@pytest.fixture
def machine(monkeypatch):
    """Makes machines, one at a time."""
    made = []

    def make(*models, **speeds):
        made.append(Machine(*models, **speeds))
        for module in (costs, timings, online_costs):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: made[-1].seconds))
        return made[-1]

    yield make
    for each in made:
        for hook in each.hooks:
            hook.remove()
