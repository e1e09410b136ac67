"""Costs that are given, for tests of what follows from them."""

from hf_speculative.schedules import Costs, RoundCosts


def fix_costs(monkeypatch, costs: Costs) -> None:
    """All calls take rounds to cost so much, whatever the clock says."""
    monkeypatch.setattr(RoundCosts, "__call__", lambda self, num_rows: costs)
    monkeypatch.setattr(RoundCosts, "settled", lambda self: lambda num_rows: costs)
