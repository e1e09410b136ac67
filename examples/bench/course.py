"""Tokens a round over the steps of a run of GRPO: of a static draft, with learning, with memory, with both.

python examples/bench/course.py [--steps 60] [--temperature 0.7] [--learning-rate 1e-4] [--output docs/assets/course.svg]

All runs of `examples/train_with_trl.py` train the same weights on the same rollouts: their drafts alone differ. Learning takes
half of the time of decoding there, for runs are short. Needs TRL and `pip install matplotlib`.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_with_trl import train

WAYS = {
    "static head": {},
    "memory by prompt": {"memory": True},
    "learning": {"learn": True},
    "both": {"learn": True, "memory": True},
}
#: steps whose mean is drawn
SMOOTH = 5


def main(
    steps: Annotated[int, typer.Option(min=4, help="Training steps.")] = 60,
    temperature: Annotated[float, typer.Option(help="Of rollouts.")] = 0.7,
    learning_rate: Annotated[float, typer.Option(help="Of the policy.")] = 1e-4,
    num_tokens: Annotated[int, typer.Option(help="Of each rollout.")] = 48,
    output: Annotated[Path, typer.Option(help="An SVG file.")] = Path("docs/assets/course.svg"),
):
    """Draw the plot, and print the mean of each quarter of the runs."""
    torch.set_num_threads(1)
    output.touch()  # if it cannot be written, now
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = {"temperature": temperature, "learning_rate": learning_rate, "num_tokens": num_tokens}
            _, rows, _ = train(steps, output=folder, **way, **settings)
        kept = [tokens for _, tokens, _ in rows]
        quarters = [statistics.mean(kept[part * steps // 4 : (part + 1) * steps // 4]) for part in range(4)]
        print(f"{name:20}", *(f"{mean:.2f}" for mean in quarters), flush=True)
        means = [statistics.mean(kept[max(0, step - SMOOTH + 1) : step + 1]) for step in range(steps)]
        axes.plot(range(1, steps + 1), means, label=name)
    axes.set(xlabel="steps of the policy", ylabel="tokens a round")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    typer.run(main)
