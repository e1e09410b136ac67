"""How passes run and what they cost, in place of what this machine would choose."""

import torch

from hf_speculative.models import linears
from hf_speculative.models.execution import EAGER, Execution
from hf_speculative.schedules import RoundCosts
from hf_speculative.types import Costs


def run_as(monkeypatch, **execution) -> None:
    """Where `optimize` is not False, passes run as this `Execution` says, and the kernel takes layers of any size."""
    monkeypatch.setattr(linears, "LEAST_BYTES", 0)
    chosen = Execution(**execution)
    for place in ("call.attached", "call.configuration"):
        monkeypatch.setattr(f"hf_speculative.{place}.execution_of", lambda optimize, _: chosen if optimize else EAGER)


def fix_costs(monkeypatch, costs: Costs) -> None:
    """All calls take rounds to cost so much, whatever the clock says."""
    monkeypatch.setattr(RoundCosts, "__call__", lambda self, num_rows: costs)
    monkeypatch.setattr(RoundCosts, "settled", lambda self: (lambda num_rows: costs, frozenset()))


def weights(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def have_equal_weights(model, expected) -> bool:
    found = model.state_dict()
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) and found[name].stride() == expected[name].stride() for name in found
    )
