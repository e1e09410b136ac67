"""A calibrated pair: random weights with the acceptance that is asked for, in the dimensions of a known model.

python examples/bench/calibrated.py --shape tinyllama-1.1b --acceptance 0.8

The draft is the target's first layers. What the later layers write to the residual stream is scaled by a factor: at 0 both
models are the same function, at a large factor they have nothing in common. The factor is bisected until the acceptance
measured on the target's own text is the one asked for. Logits are scaled until their entropy is a language model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from compare import show
from random_weights import best_dtype, draw, first_layers, later_projections, numbered_tokenizer, random_model
from shapes import SHAPES, Shape
from torch import Tensor

from hf_speculative import theory
from hf_speculative.measuring.calls import assisted
from hf_speculative.measuring.settings import NamedDraft

ENTROPY = 2.0
NUM_TOKENS = 32
#: between these factors acceptance falls from nearly 1 to nearly 0
FACTORS = (2.0**-12, 2.0**4)
#: of the acceptance, for the bisection; the text that it is then confirmed on is another, and finite
TOLERANCE = 0.015


@dataclass(frozen=True)
class Calibration:
    """What the calibration of a pair reached.

    Attributes:
        acceptance: mean over positions of sum min(p, q); when greedy, the share of positions with the same argmax.
        entropy: mean entropy of the target's distribution at temperature 1, in nats.
        factor: what the later layers write is scaled by this.
        num_positions: positions of the target's own text that both figures are means over.
    """

    acceptance: float
    entropy: float
    factor: float
    num_positions: int


class CalibratedPair:
    """A target of a named shape, and its own first layers as the draft.

    Args:
        shape: a name in `SHAPES`, or a `Shape` of your own.
        dtype: Default: bfloat16 if the device supports it.
        draft_is_target: the target is its own draft: everything is accepted, at the target's cost.
        num_rows: rows of 32 tokens that acceptance is measured on. Default: as many as some seconds allow.
    """

    def __init__(
        self,
        shape: str | Shape,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        draft_is_target: bool = False,
        seed: int = 0,
        num_rows: int | None = None,
    ):
        if isinstance(shape, str):
            if shape not in SHAPES:
                raise ValueError(f"`shape={shape!r}` is not known: choose one of {', '.join(SHAPES)}.")
            shape = SHAPES[shape]
        device = torch.device(device)
        self.shape, self.seed = shape, seed
        target = random_model(shape.make_config(), dtype or best_dtype(device), device, seed)
        draft = target if draft_is_target else first_layers(target, shape.draft_layers)
        self.target, self.draft, self.device = target, draft, device
        operations = 1e14 if device.type == "cuda" else 1e11  # of a pass over the text
        self.num_rows = num_rows or min(64, max(6, int(operations / target.num_parameters() / NUM_TOKENS)))
        self.factor = 1.0
        self.projections = later_projections(target, shape.draft_layers)
        self.calibrations: dict[tuple[float, float], Calibration] = {}
        self._scale_logits()

    def prompts(self, batch: int, length: int) -> Tensor:
        """`(batch, length)` random ids, the same at each call."""
        generator = torch.Generator().manual_seed(length)
        vocab_size = self.target.config.get_text_config().vocab_size
        return torch.randint(1, vocab_size, (batch, length), generator=generator).to(self.device)

    def prepare(self, acceptance: float | None, temperature: float) -> Calibration:
        """Calibrate to `acceptance` at `temperature` (0 is greedy), or return to an earlier calibration.

        At 0 the later layers outweigh the draft's, at 1 they write nothing.

        Raises:
            ValueError: no acceptance is given, or one outside 0 to 1.
        """
        if self.draft is self.target:
            acceptance = 0.0  # of the first layers, which nobody asks
        if acceptance is None or not 0 <= acceptance <= 1:
            raise ValueError(f"`acceptance={acceptance}`: a shape has random weights, so say how much to accept, 0 to 1.")
        key = (acceptance, temperature)
        if key in self.calibrations:
            self._write(self.calibrations[key].factor)
            return self.calibrations[key]
        if acceptance in (0, 1):
            self._write(FACTORS[1] if acceptance == 0 else 0.0)
            self.calibrations[key] = self._measure(self._own_text(temperature), temperature)
            return self.calibrations[key]
        # Random ids are near enough to the target's text to begin with, and cost no decoding.
        text = self.prompts(self.num_rows, 8 + NUM_TOKENS)
        tries = []
        for _ in range(3):
            self._bisect(text, acceptance, temperature)
            text = self._own_text(temperature)
            tries.append(self._measure(text, temperature))
            noise = (acceptance * (1 - acceptance) / tries[-1].num_positions) ** 0.5
            if abs(tries[-1].acceptance - acceptance) <= max(2 * TOLERANCE, 1.5 * noise):
                break
        self.calibrations[key] = best = min(tries, key=lambda found: abs(found.acceptance - acceptance))
        self._write(best.factor)
        return best

    def _bisect(self, text: Tensor, acceptance: float, temperature: float) -> None:
        """Halve the range of the factor's logarithm until the acceptance on `text` is the one asked for."""
        if self.factor == 0:  # nothing is left to scale
            self._write(1.0)
        draft_logits = self._logits(text, self.draft)

        def is_above(factor: float) -> bool | None:
            with self._as_if(factor):
                reached = acceptance_of(self._logits(text), draft_logits, temperature)
            return None if abs(reached - acceptance) < TOLERANCE else reached > acceptance

        self._write(2 ** bisect(lambda exponent: is_above(2**exponent), *(torch.tensor(FACTORS).log2().tolist())))

    def _measure(self, text: Tensor, temperature: float) -> Calibration:
        logits = self._logits(text)
        reached = acceptance_of(logits, self._logits(text, self.draft), temperature)
        return Calibration(reached, _entropy(logits).item(), self.factor, len(logits))

    @torch.no_grad()
    def _logits(self, text: Tensor, model=None) -> Tensor:
        """`(positions, vocab)` float32: the distribution of each of the text's last `NUM_TOKENS` tokens, given those before."""
        output = (model or self.target)(text, use_cache=False, logits_to_keep=NUM_TOKENS + 1)
        return output.logits[:, -NUM_TOKENS - 1 : -1].flatten(0, 1).float()

    def _own_text(self, temperature: float) -> Tensor:
        """`(rows, NUM_TOKENS + a short prompt)`, written by the target."""
        prompts = self.prompts(self.num_rows, 8)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return self.target.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NUM_TOKENS, **sampling)

    @contextmanager
    def _as_if(self, factor: float) -> Iterator[None]:
        """Other weights for a while, without writing them: what the projections give is scaled instead."""
        ratio = factor / self.factor
        modules = [self.target.get_submodule(name.rpartition(".")[0]) for name in self.projections]
        hooks = [module.register_forward_hook(lambda *call: call[2] * ratio) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _write(self, factor: float) -> None:
        if factor != self.factor:
            for name in self.projections:
                draw(self.target, name, self.seed, factor)
            self.factor = factor

    @torch.no_grad()
    def _scale_logits(self) -> None:
        """Set the final norm, which scales all logits alike, so that the target's entropy is `ENTROPY`."""
        logits = self._logits(self.prompts(self.num_rows, 8 + NUM_TOKENS))
        scale = bisect(lambda scale: bool(_entropy(logits * scale) > ENTROPY), 0.1, 100.0)
        final_norm = [module for module in self.target.modules() if hasattr(module, "weight") and module.weight.ndim == 1][-1]
        final_norm.weight.mul_(scale)


def acceptance_of(target_logits: Tensor, draft_logits: Tensor, temperature: float) -> float:
    """Share of draft tokens that are accepted, as a mean over positions; logits `(positions, vocab)` of both models."""
    if temperature == 0:
        return (target_logits.argmax(-1) == draft_logits.argmax(-1)).float().mean().item()
    distributions = [(logits / temperature).softmax(-1) for logits in (target_logits, draft_logits)]
    return theory.acceptance_rate(*distributions).mean().item()


def bisect(is_above: Callable[[float], bool | None], low: float, high: float, steps: int = 12) -> float:
    """Where a falling function reaches its goal; `is_above` says on which side a point is, `None` if it is close enough."""
    for _ in range(steps):
        middle = (low + high) / 2
        answer = is_above(middle)
        if answer is None:
            return middle
        low, high = (middle, high) if answer else (low, middle)
    return (low + high) / 2


def _entropy(logits: Tensor) -> Tensor:
    return torch.distributions.Categorical(logits=logits).entropy().mean()


def main(
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "tiny",
    acceptance: Annotated[float, typer.Option(help="0: the draft is hardly ever right; 1: always.")] = 0.8,
    draft_tokens: Annotated[int, typer.Option(help="Draft length.")] = 4,
    batch: Annotated[int, typer.Option(help="Prompts decoded together.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 3,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
):
    """Measure a pair of random weights in real dimensions at a given acceptance."""
    pair = CalibratedPair(shape, device=device)
    reached = pair.prepare(acceptance, temperature)
    print(f"acceptance {reached.acceptance:.1%}, entropy {reached.entropy:.2f} nats")
    tokenizer = numbered_tokenizer(pair.target.config.get_text_config().vocab_size)
    rivals = [assisted(pair.target, NamedDraft(pair.draft))]
    prompts = pair.prompts(batch, context).tolist()
    show(pair.target, pair.draft, tokenizer, prompts, rivals, draft_tokens, new_tokens, temperature, repeats)


if __name__ == "__main__":
    typer.run(main)
