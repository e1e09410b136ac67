"""GRPO with TRL, its rollouts through a draft: attach it to the model, and TRL's own `GRPOTrainer` speculates.

    pip install 'hf_speculative[trl]'
    python examples/train_with_trl.py                     # the embedded pair, CPU, about a minute
    python examples/train_with_trl.py --plain             # the same run without a draft: the same weights in the end
    python examples/train_with_trl.py --learn --memory    # the draft learns beside the rollouts, and copies from earlier ones

`reproducible=True` gives the very tokens that plain decoding gives under the same seed, so the draft changes nothing but the
number of passes. Without it, samples are other draws from the same distribution.
"""

from typing import Annotated

import datasets
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

import hf_speculative as hs

try:
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise SystemExit("This example needs TRL: pip install 'hf_speculative[trl]'") from error

PROMPTS = ["def read(path):\n", "import os\n", "class Node:\n", "for name in names:\n"]
#: of the time, for learning: these runs are short
SHARE = 0.5


def short_lines(completions: list[str], **kwargs) -> list[float]:
    """The reward: the share of lines of at most 20 characters."""
    texts = [text.splitlines() or [""] for text in completions]
    return [sum(len(line) <= 20 for line in lines) / len(lines) for lines in texts]


class Watch(TrainerCallback):
    """What each step's rollouts took: tokens a round, and passes."""

    def __init__(self):
        self.rows: list[tuple[int, float, int]] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.recording = hs.record()
        self.stats = self.recording.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.recording.__exit__(None, None, None)
        if self.stats.num_target_forwards:
            self.rows.append((state.global_step, self.stats.mean_acceptance_length, self.stats.num_target_forwards))


def train(
    steps: int,
    plain: bool = False,
    learn: bool = False,
    memory: bool = False,
    output: str = "grpo",
    num_tokens: int = 24,
    **settings,
):
    """A run of GRPO; returns the model, of each step its number, tokens a round and passes, and what learned, if anything."""
    torch.manual_seed(0)
    model, head, tokenizer = hs.embedded_pair(head=True)
    tokenizer.padding_side = "left"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, head, learner = model.to(device), head.to(device), hs.Learner(share=SHARE) if learn else None
    if not plain:
        store = hs.SuffixStore(tokenizer) if memory else None
        config = hs.SpeculativeConfig(num_draft_tokens=4, reproducible=True, corpus=store)
        draft = [head, "suffix"] if memory else head
        hs.attach(model, draft, config=config, learn=learner)
    arguments = GRPOConfig(
        output_dir=output,
        max_steps=steps,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=num_tokens,
        save_strategy="no",
        report_to=[],
        use_cpu=device == "cpu",
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=device == "cuda",
        **{"learning_rate": 3e-4} | settings,
    )
    data = datasets.Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    watch = Watch()
    trainer = GRPOTrainer(model, short_lines, arguments, train_dataset=data, processing_class=tokenizer, callbacks=[watch])
    trainer.train()
    return model, watch.rows, learner


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 8,
    plain: Annotated[bool, typer.Option("--plain", help="Attach no draft.")] = False,
    learn: Annotated[bool, typer.Option("--learn", help="Let the draft learn beside the rollouts.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Copy from earlier rollouts as well.")] = False,
    output: Annotated[str, typer.Option(help="Folder of the trainer.")] = "grpo",
):
    """Train with GRPO; print what the rollouts of each step took."""
    model, rows, _ = train(steps, plain, learn, memory, output)
    table = Table("step", "tokens a round", "target passes")
    for step, kept, passes in rows:
        table.add_row(str(step), f"{kept:.2f}", str(passes))
    Console().print(table)
    weights = torch.cat([weight.detach().flatten().double().cpu() for weight in model.parameters()])
    Console().print(f"sum of the weights' squares: {weights.square().sum():.9f}")


if __name__ == "__main__":
    typer.run(main)
