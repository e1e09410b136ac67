"""Choose how draft tokens come from the draft's distribution q when the target samples: drawn, or the likeliest token.

At a position with the target's distribution p, a token drawn from q is kept with probability sum min(p, q). The likeliest token
of q is kept with p(argmax q). Both can be read from p and q, whichever was proposed. So rounds that are over say which is
better, and neither has to be tried for it. A round's method is chosen before anything of it is drawn.
"""

DRAWN, LIKELIEST, CHOSEN = "probabilistic", "greedy", "auto"
#: decay of statistics a round
FADING = 0.97
#: the least ratio by which the likeliest token has to be better: block verification keeps more drawn tokens than token-wise
#: chances say
MARGIN = 1.15


class MeasuredChoice:
    """The likeliest where it would clearly have kept more draft tokens in the rounds before, the latest counting most."""

    def __init__(self) -> None:
        self.drawn = self.likeliest = 0.0

    @property
    def is_likeliest(self) -> bool:
        return self.likeliest > MARGIN * self.drawn

    def add(self, drawn: float, likeliest: float) -> None:
        """How many tokens each would have kept in a round, in expectation."""
        self.drawn, self.likeliest = FADING * self.drawn + drawn, FADING * self.likeliest + likeliest
