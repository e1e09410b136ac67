"""The exact distribution of what `generate` writes: each row of a batch takes outcomes of its own for all random decisions.

Every random decision of a call is the sampler's `categorical` or `bernoulli`. Here a row has a script of outcomes, and where it
says nothing takes the likeliest. The other outcomes that there were on its way are the scripts of further rows, in the next
call, and so on until what is left weighs next to nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from unittest import mock
from unittest.mock import Mock

import torch

from hf_speculative.sampling.logits_processors import Processors
from hf_speculative.sampling.samplers import Independent, MeasuredChoice

#: which decision of a row: in which of its rounds, about what, how many places ahead, for the how-manieth time. To count them
#: all would not do: a row draws draft tokens and flips coins that it has no use for, as many as other rows of the batch need
Decision = tuple[int, str, int, int]
#: what was decided, and how probable that was
Script = dict[Decision, tuple[int, float]]


class Scripted:
    """What decides in place of `Independent`.

    Args:
        scripts: of each row; decisions that they leave open are added.

    Attributes:
        others: of each row, the scripts with another outcome for one of the decisions that were left open.
    """

    def __init__(self, scripts: list[Script]):
        self.scripts = scripts
        self.others: list[list[Script]] = [[] for _ in scripts]
        self.num_rounds = [0] * len(scripts)
        self.num_asked: Counter[tuple[str, int]] = Counter()

    def begin_round(self, batch):
        self.rows = list(batch.rows)
        for row in self.rows:
            self.num_rounds[row] += 1
        self.num_asked.clear()

    def bernoulli(self, probability):
        return self._decide(torch.stack([1 - probability, probability], -1), "coin", 0).bool()

    def categorical(self, probs, ahead=None, **kwargs):
        return self._decide(probs, "next token" if ahead is None else "draft token", ahead or 0)

    def _decide(self, probs, kind, ahead):
        probs = probs.double() / probs.double().sum(-1, keepdim=True)
        outcomes = probs.argmax(-1).tolist()
        self.num_asked.update((kind, ahead + place) for place in range(probs.shape[1]))
        for lane, (row, places) in enumerate(zip(self.rows, probs.tolist(), strict=True)):
            script = self.scripts[row]
            for place, weights in enumerate(places):
                asked, likeliest = (kind, ahead + place), outcomes[lane][place]
                decision = (self.num_rounds[row], *asked, self.num_asked[asked])
                if decision not in script:
                    self.others[row] += [
                        script | {decision: (outcome, weight)}
                        for outcome, weight in enumerate(weights)
                        if outcome != likeliest and weight > 0
                    ]
                    script[decision] = likeliest, weights[likeliest]
                outcomes[lane][place] = script[decision][0]
        return torch.tensor(outcomes)


def weight_of(script: Script) -> float:
    return math.prod(weight for _, weight in script.values())


def enumerate_texts(call: Callable[[list[int]], list[Hashable]], num_prompts: int, least: float = 1e-5):
    """How probable each text is, by prompt: `[{text: probability}, ...]`, less what scripts of weights below `least` lead to.

    Args:
        call: generates one text for each prompt named, all in one call: `(numbers of prompts) -> texts`. What is drafted for a
            row must not depend on the others, as it does under the default schedule.
    """
    found: list[dict[Hashable, float]] = [defaultdict(float) for _ in range(num_prompts)]
    pending: list[tuple[int, Script]] = [(prompt, {}) for prompt in range(num_prompts)]
    while pending:
        scripted = Scripted([script for _, script in pending])
        methods = {name: staticmethod(getattr(scripted, name)) for name in ("begin_round", "bernoulli", "categorical")}
        # Drawn or likeliest is decided for all rows together: enumerated in tests/sampling/test_sample_method.py. So is which
        # few tokens are numbered, of whose draws tests/verification/test_narrowed.py has that they are those of all tokens.
        drawn = mock.patch.object(MeasuredChoice, "is_likeliest", False)
        of_all = mock.patch.object(Processors, "narrowed", Mock(return_value=None))
        with mock.patch.multiple(Independent, **methods), drawn, of_all:
            texts = call([prompt for prompt, _ in pending])
        rows, pending = pending, []
        for (prompt, script), text, others in zip(rows, texts, scripted.others, strict=True):
            found[prompt][text] += weight_of(script)
            pending += [(prompt, other) for other in others if weight_of(other) > least]
    return found
