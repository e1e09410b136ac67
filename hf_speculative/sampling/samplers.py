"""Samplers, from logits to tokens: greedy, sampled, or coupled to plain `generate`'s own noise.

Target and draft go through the same processors. Greedy decoding is a one-hot distribution, so that a rule serves it like any
other. A residual is drawn as probabilities; it never goes back through the logits.

Every random decision is `bernoulli` or `categorical`, so that a test can put a script in their place and enumerate them.
"""

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ..forwarding import Forwarded
from ..interfaces import Sampler
from ..types import Batch, Few, Tree
from .draws import exponential_race, inverse_transform, race_of_possible
from .logits_processors import Processors

#: how draft tokens come from the draft's distribution
DRAWN, LIKELIEST, CHOSEN = "probabilistic", "greedy", "auto"
#: decay of statistics a round
FADING = 0.97
#: the least ratio by which the likeliest token has to be better: block verification keeps more drawn tokens than token-wise
#: chances say
MARGIN = 1.15


class MeasuredChoice:
    """The likeliest where it would clearly have kept more draft tokens in the rounds before, the latest counting most.

    At a position with the target's distribution p, a token drawn from q is kept with probability sum min(p, q), the likeliest
    token of q with p(argmax q). Both can be read from p and q, whichever was proposed, so that neither has to be tried. A
    round's method is chosen before anything of it is drawn.
    """

    drawn = likeliest = 0.0

    @property
    def is_likeliest(self) -> bool:
        return self.likeliest > MARGIN * self.drawn

    def add(self, drawn: float, likeliest: float) -> None:
        """How many tokens each would have kept in a round, in expectation."""
        self.drawn, self.likeliest = FADING * self.drawn + drawn, FADING * self.likeliest + likeliest


#: where the target takes a maximum, a draft's best token is that more often than its probability says: its scores count double
#: (embedded pair, HumanEval, greedy, trees of 8 nodes: 2.6 tokens a pass without, 3.3 with, and 3.3 at four times)
SHARPNESS = 2.0
#: consecutive rounds of `Greedy.num_forbidden` after which drafts are processed
MOST_FORBIDDEN = 3
#: random numbers that `Coupled` keeps, 256 MiB, and of how many steps it should
MOST_NOISE, STEPS_KEPT = 2**26, 64


class ProcessedSampler(Sampler):
    """Logits go through the call's logits processors, the target's and the draft's alike. Subclasses say how tokens are drawn.

    Args:
        processors: of the call.
        vocab_size: width of the target's logits.
    """

    takes_trees = Forwarded("processors", "takes_trees")  # type: ignore[assignment]

    def __init__(self, processors: Processors, vocab_size: int):
        self.processors, self.vocab_size = processors, vocab_size

    @property
    def drafts_trees(self) -> bool:  # type: ignore[override]
        return self.takes_trees and not self.processors.have_memory

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        self.processors.commit(batch, [len(new) for new in tokens])

    def target_scores(self, batch: Batch, logits: Tensor) -> Tensor | Few:
        if self.narrows and (few := self.processors.narrowed(logits)) is not None:
            return few
        # Float32 before temperature and softmax, as plain generate.
        scores = logits.to(torch.float32, copy=self.processors.write_in_place)
        return self.processors(batch, scores, ahead=0, is_draft=False)

    def level_scores(self, batch: Batch, logits: Tensor, ahead: int) -> Tensor:
        writes = self.processors.write_in_place
        scores = logits[..., : self.vocab_size].to(batch.tokens.device, torch.float32, copy=writes)
        if scores.shape[2] < self.vocab_size:
            scores = functional.pad(scores, (0, self.vocab_size - scores.shape[2]), value=-torch.inf)
        return self.processors(batch, scores, ahead, is_draft=True)

    def probs(self, scores: Tensor) -> Tensor:
        """NaN throughout where `scores` stand for no distribution."""
        return scores.softmax(-1)

    def target_probs(self, scores: Tensor | Few) -> tuple[Tensor | Few, Tensor]:
        if isinstance(scores, Few):
            return replace(scores, values=self.probs(scores.values)), torch.ones(scores.values.shape[:-1], dtype=torch.bool)
        probs = self.probs(scores)
        # A uniform one stands for what is none, so that a rule leads there as often as plain decoding does.
        return self._guessed(probs), ~probs[..., 0].isnan()

    def _guessed(self, probs: Tensor) -> Tensor:
        if probs.device.type == "cpu" and not bool(probs[..., 0].isnan().any()):
            return probs
        return probs.nan_to_num(1 / self.vocab_size)

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        """Nothing is likely where the draft has nothing to say, see `propose`."""
        return scores.log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        # A draft may have nothing to say: all that is allowed is past its vocabulary, or its logits are NaN. It then guesses at
        # random, and says so, which is exact as well.
        probs = self._guessed(self.probs(scores))
        tokens = self.categorical(probs[:, None], ahead)[:, 0]
        return tokens, probs if self.keeps_draft_probs and not self.one_hot_proposals else None


class Greedy(ProcessedSampler):
    """Temperature 0: the distribution is one-hot at the argmax of the processed logits, the first one on a tie."""

    one_hot_proposals = True
    #: rounds in a row whose drafts came upon a forbidden token: the text would end, say, where it must not
    num_forbidden = 0

    @property
    def settings(self) -> Hashable | None:  # type: ignore[override]
        return self.processors.settings and ("greedy", self.processors.settings)

    @property
    def proposes_argmax(self) -> bool:  # type: ignore[override]
        return self.num_forbidden < MOST_FORBIDDEN and self.processors.forbidden is not None

    def num_allowed(self, tokens: Tensor) -> Tensor | None:
        if not self.processors.forbidden:
            return None
        is_forbidden = torch.isin(tokens, torch.cat(self.processors.forbidden).to(tokens.device))
        if not bool(is_forbidden.any()):
            self.num_forbidden = 0
            return None
        self.num_forbidden += 1
        return (~is_forbidden).long().cumprod(1).sum(1)

    def probs(self, scores: Tensor) -> Tensor:
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)

    def target_probs(self, scores: Tensor | Few) -> tuple[Tensor | Few, Tensor]:
        if isinstance(scores, Few):
            return super().target_probs(scores)
        # An argmax is there whatever the scores are: one-hot is never no distribution.
        are_valid = torch.ones(scores.shape[:-1], dtype=torch.bool, device=scores.device)
        if not self.narrows or scores.device.type != "cpu" or are_valid.numel() == 1:
            return self.probs(scores), are_valid
        ids, places = scores.argmax(-1).unique(return_inverse=True)
        return Few(functional.one_hot(places, len(ids) + 1).float(), ids, self.vocab_size), are_valid

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        return super().confidences(SHARPNESS * scores, ahead)

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        return scores.argmax(-1), None

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        return probs.argmax(-1)

    def bernoulli(self, probability: Tensor) -> Tensor:
        return probability > 0.5


class Independent(ProcessedSampler):
    """Sampling with fresh randomness for every decision, from `generator` or torch's global one.

    Args:
        method: whether draft tokens are drawn, the likeliest, or what was better before, see `MeasuredChoice`.
    """

    def __init__(self, processors: Processors, vocab_size: int, generator: torch.Generator | None, method: str):
        super().__init__(processors, vocab_size)
        self.generator, self.choice = generator, MeasuredChoice()
        self.measures_drafts, self.one_hot_proposals = method == CHOSEN, method == LIKELIEST

    @property
    def settings(self) -> Hashable | None:  # type: ignore[override]
        if self.generator is not None or self.processors.settings is None:
            return None
        return ("independent", self.keeps_draft_probs, self.proposes_likeliest, self.processors.settings)

    @property
    def proposes_likeliest(self) -> bool:  # type: ignore[override]
        return self.one_hot_proposals or (self.measures_drafts and self.choice.is_likeliest)

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        super().end_round(batch, tokens)
        if chances is not None:
            self.choice.add(*chances)

    def propose(self, scores: Tensor, ahead: int) -> tuple[Tensor, Tensor | None]:
        if not self.proposes_likeliest:
            return super().propose(scores, ahead)
        if self.one_hot_proposals:
            return scores.argmax(-1), None
        probs = self._guessed(self.probs(scores))
        return probs.argmax(-1), probs

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        if probs.device.type != "cpu":
            return exponential_race(probs, torch.empty_like(probs).exponential_(generator=self.generator))
        # A sum takes a CPU a small part of the time that noise for each token takes.
        uniform = torch.empty_like(probs[..., :1], dtype=torch.float64).uniform_(generator=self.generator)
        return inverse_transform(probs, uniform)

    def bernoulli(self, probability: Tensor) -> Tensor:
        # u in [0, 1) and a strict comparison: probability 0 never happens, probability 1 always does.
        return torch.empty_like(probability).uniform_(generator=self.generator) < probability


class Coupled(ProcessedSampler):
    """Sampling whose output is, token for token, what plain `generate(do_sample=True)` gives under the same seed.

    Plain decoding draws one `(batch, vocab)` tensor of Exp(1) noise a step and lets tokens race in it. Here row b at its own
    step t uses row b of that same tensor, to propose a draft token and to choose the target's. The target's choice
    is then plain decoding's by construction, whatever was drafted, and the draft guesses well because it shares the
    noise. (Drafter-invariant sampling, Daliri et al. 2024, arXiv 2408.07978.)

    The noise of a step is drawn in plain decoding's order and kept while rows may need it, up to `MOST_NOISE` numbers; past
    that, it is drawn again from the generator's saved state.
    """

    one_hot_proposals = True

    def __init__(self, processors: Processors, vocab_size: int, batch: Batch, generator: torch.Generator | None = None):
        super().__init__(processors, vocab_size)
        self.shape, self.device = (len(batch.rows), vocab_size), batch.tokens.device
        self.generator = generator if generator is not None else default_generator(self.device)
        self.max_kept = max(1, MOST_NOISE // (len(batch.rows) * vocab_size))
        self.states: list[Tensor] = []  # states[t]: the generator before the noise of step t was drawn
        self.left = torch.empty(0)  # the generator after the last one
        self.noise: dict[int, Tensor] = {}
        self.num_steps = 0
        #: of the few tokens that the target can draw in this round
        self.ids = torch.empty(0, dtype=torch.long)

    def begin_round(self, batch: Batch) -> None:
        self.rows = batch.rows
        self.steps = [length - batch.prompt_width for length in batch.host_lengths]
        for step in [step for step in self.noise if step < min(self.steps)]:
            del self.noise[step]

    def end_round(self, batch: Batch, tokens: list[list[int]], chances: tuple[float, float] | None = None) -> None:
        super().end_round(batch, tokens)
        self.num_steps = max(self.num_steps, *(s + len(new) for s, new in zip(self.steps, tokens, strict=True)))

    def target_probs(self, scores: Tensor | Few) -> tuple[Tensor | Few, Tensor]:
        probs, are_valid = super().target_probs(scores)
        if isinstance(probs, Few):
            self.ids = probs.ids
        return probs, are_valid

    def finish(self, most_steps: int | None = None) -> None:
        """Leave the generator where plain decoding leaves it: one draw a step, whatever was looked at ahead.

        If others have drawn from it in between, it stays where it is: their numbers must not come again.
        """
        num_steps = self.num_steps if most_steps is None else min(most_steps, self.num_steps)
        if num_steps < len(self.states) and torch.equal(self.generator.get_state(), self.left):
            self.generator.set_state(self.states[num_steps])

    def confidences(self, scores: Tensor, ahead: int) -> Tensor:
        race = scores.log_softmax(-1) - self._noise(ahead, 1).log()
        return super().confidences(SHARPNESS * race, ahead)

    def categorical(self, probs: Tensor, ahead: int = 0, tree: Tree | None = None) -> Tensor:
        if probs.device.type == "cpu":  # without a copy of the noise
            depths = [range(probs.shape[1])] * len(probs) if tree is None else tree.depths.tolist()
            places = zip(self.rows, self.steps, depths, strict=True)
            noises = [self.noise_of(step + ahead + depth)[row] for row, step, own in places for depth in own]
            if probs.shape[2] < self.vocab_size:  # those of `target_probs`, of few tokens
                noises = [functional.pad(noise[self.ids], (0, 1), value=1.0) for noise in noises]
            races = map(race_of_possible, probs.flatten(0, 1), noises)
            return torch.tensor(list(races)).view(probs.shape[:2])
        noise = self._noise(ahead, probs.shape[1] if tree is None else tree.depth + 1)
        if tree is not None:  # plain decoding gets to one of the nodes of a depth, at the step of that depth
            noise = noise[torch.arange(len(noise), device=noise.device)[:, None], tree.depths.to(noise.device)]
        return exponential_race(probs, noise)

    def _noise(self, ahead: int, width: int) -> Tensor:
        """`(batch, width, vocab)` noise of each row's steps `ahead`, `ahead + 1`, ... places ahead."""
        starts = zip(self.rows, self.steps, strict=True)
        noises = [self.noise_of(step + ahead + i)[row] for row, step in starts for i in range(width)]
        return torch.stack(noises).unflatten(0, (-1, width))

    def noise_of(self, step: int) -> Tensor:
        """The `(batch, vocab)` noise that plain decoding draws at `step`."""
        while len(self.states) <= step:
            self.states.append(self.generator.get_state())
            self._keep(len(self.states) - 1, self._draw(self.generator))
            self.left = self.generator.get_state()
        if step not in self.noise:
            again = torch.Generator(self.device)
            again.set_state(self.states[step])
            self._keep(step, self._draw(again))
        return self.noise[step]

    def _draw(self, generator: torch.Generator) -> Tensor:
        return torch.empty(self.shape, dtype=torch.float32, device=self.device).exponential_(1, generator=generator)

    def _keep(self, step: int, noise: Tensor) -> None:
        while len(self.noise) >= self.max_kept:
            del self.noise[next(iter(self.noise))]
        self.noise[step] = noise


def most_coupled_rows(vocab_size: int) -> int:
    """Rows of a `Coupled` call whose noise of `STEPS_KEPT` steps is kept. Noise of more is drawn again for each that starts."""
    return max(1, MOST_NOISE // (STEPS_KEPT * vocab_size))


def default_generator(device: torch.device) -> torch.Generator:
    """Torch's global generator of a device, the one `torch.manual_seed` seeds."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    raise ValueError(f"`reproducible=True` knows no generator of {device}: pass `SpeculativeConfig(generator=...)`.")
