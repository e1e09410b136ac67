"""Choose the texts that a learner is judged by."""

from collections.abc import Sequence

#: one prompt in ONE_IN is held out; the sides of MOST_PROMPTS are remembered
ONE_IN, MOST_PROMPTS = 5, 4096


class HeldOut:
    """Tells whether texts that begin with a prompt are judged by, not learned from: by the prompt, so that none is both.

    Prompts take turns as they first appear, and the second one is held out, so that few are enough.
    """

    def __init__(self) -> None:
        self.known, self.num = dict[int, bool](), 0

    def __call__(self, prompt: Sequence[int]) -> bool:
        key = hash(tuple(prompt))
        if key not in self.known:
            while len(self.known) >= MOST_PROMPTS:  # threads may each have added one
                self.known.pop(next(iter(self.known)), None)
            self.known[key], self.num = self.num % ONE_IN == 1, self.num + 1
        return self.known[key]
