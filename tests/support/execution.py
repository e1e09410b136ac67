"""How passes run, and what they cost, in place of what this machine would choose and measure."""

from hf_speculative.call.optimize import EAGER, Execution
from hf_speculative.models import packing
from hf_speculative.schedules import Costs, RoundCosts


def run_as(monkeypatch, **execution) -> None:
    """Where `optimize` is not False, passes run as this `Execution` says, and pack layers of any size."""
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    chosen = Execution(**execution)
    for place in ("call.attached", "call.configuration", "call.plain"):
        monkeypatch.setattr(
            f"hf_speculative.{place}.execution_of", lambda optimize, device: chosen if optimize else EAGER
        )


def fix_costs(monkeypatch, costs: Costs) -> None:
    """All calls take rounds to cost so much, whatever the clock says."""
    monkeypatch.setattr(RoundCosts, "__call__", lambda self, num_rows: costs)
    monkeypatch.setattr(RoundCosts, "settled", lambda self: lambda num_rows: costs)
