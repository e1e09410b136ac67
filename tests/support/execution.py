"""How passes run, in place of what `optimize` would choose on this machine."""

from hf_speculative.call.optimize import EAGER, Execution
from hf_speculative.models import packing


def run_as(monkeypatch, **execution) -> None:
    """Where `optimize` is not False, passes run as this `Execution` says, and pack layers of any size."""
    monkeypatch.setattr(packing, "LEAST_BYTES", 0)
    chosen = Execution(**execution)
    for place in ("call.attached", "call.configuration", "call.plain"):
        monkeypatch.setattr(
            f"hf_speculative.{place}.execution_of", lambda optimize, device: chosen if optimize else EAGER
        )
