"""economize (Laitenberger 2026) beside ours with the embedded pair: `pip install economize`.

python examples/bench/peer_economize.py --temperature 0
"""

from __future__ import annotations

import tempfile
from typing import Annotated, Any

import economize
import typer
from compare import show, timed_rival
from economize.techniques.draft_model import DraftModelConfig

import hf_speculative as hs
from hf_speculative.measuring.bench import prompts


def main(
    draft_tokens: Annotated[int, typer.Option(help="Draft length, the same for both.")] = 4,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 3,
):
    """Compare with economize, which takes its draft model by name and drafts a constant number of tokens."""
    target, draft, tokenizer = hs.embedded_pair()
    with tempfile.TemporaryDirectory() as folder:
        draft.save_pretrained(folder)
        applied = economize.apply(hs.embedded_pair()[0], DraftModelConfig(model=folder))

        def new_ids(call: dict[str, Any]) -> list[list[int]]:
            settings: dict[str, Any] = {"cycle_length": call.pop("num_draft_tokens") + 1}
            if temperature:
                settings["verifier"] = "rejection"
            ids = applied.generate(**call, decoding=economize.DecodeConfig(**settings))
            return ids[:, call["input_ids"].shape[1] :].tolist()

        rivals = [timed_rival("economize", new_ids)]
        show(target, draft, tokenizer, prompts(tokenizer, 1, 64), rivals, draft_tokens, 64, temperature, repeats)


if __name__ == "__main__":
    typer.run(main)
