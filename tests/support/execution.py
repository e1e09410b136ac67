"""How passes run, in place of what `optimize` would choose on this machine."""

from hf_speculative.call.optimize import EAGER, Execution


def run_as(monkeypatch, **execution) -> None:
    """Where `optimize` is not False, passes run as this `Execution` says."""
    chosen = Execution(**execution)
    for place in ("call.attached", "call.configuration", "call.plain"):
        monkeypatch.setattr(
            f"hf_speculative.{place}.execution_of", lambda optimize, device: chosen if optimize else EAGER
        )
