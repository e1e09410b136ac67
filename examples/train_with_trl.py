"""GRPO with TRL, its rollouts through a draft: attach it to the model, and TRL's own `GRPOTrainer` speculates.

    pip install 'hf_speculative[trl]'
    python examples/train_with_trl.py                     # the embedded pair, CPU, about a minute
    python examples/train_with_trl.py --plain             # the same run without a draft: the same weights in the end
    python examples/train_with_trl.py --refresh-draft     # the draft follows the model that moves away from it

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


def short_lines(completions: list[str], **kwargs) -> list[float]:
    """The reward: the share of lines of at most 20 characters."""
    texts = [text.splitlines() or [""] for text in completions]
    return [sum(len(line) <= 20 for line in lines) / len(lines) for lines in texts]


class Watch(TrainerCallback):
    """What each step's rollouts took; and, if asked for, a step of the draft towards the model, on its last texts."""

    def __init__(self, model, draft, refresh: bool, learning_rate: float = 1e-3):
        self.model, self.draft, self.refresh, self.rows = model, draft, refresh, []
        self.optimizer = torch.optim.Adam(draft.parameters(), lr=learning_rate)

    def on_step_begin(self, args, state, control, **kwargs):
        self.recording = hs.record()
        self.stats = self.recording.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        self.recording.__exit__(None, None, None)
        if self.stats.num_target_forwards:
            rate = self.stats.draft_acceptance_rate if self.stats.num_draft_tokens else float("nan")
            self.rows.append((state.global_step, rate, self.stats.num_target_forwards))

    def learn(self, texts: torch.Tensor, mask: torch.Tensor) -> None:
        with torch.no_grad():
            p = self.model(texts, attention_mask=mask).logits.float().log_softmax(-1)
        q = self.draft(texts, attention_mask=mask).logits.float().log_softmax(-1)
        loss = ((p.exp() * (p - q)).sum(-1) * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Trainer(GRPOTrainer):
    """`GRPOTrainer` as it is; only that a draft which learns along is told the texts of each step."""

    watch: Watch

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.watch.refresh and self.model.training:
            parts = ("prompt", "completion")
            self.watch.learn(*(torch.cat([output[f"{part}_{kind}"] for part in parts], 1) for kind in ("ids", "mask")))
        return output


def train(steps: int, plain: bool = False, refresh_draft: bool = False, output: str = "grpo", num_tokens: int = 24):
    """A run of GRPO; returns the model and what was watched."""
    torch.manual_seed(0)
    model, draft, tokenizer = hs.embedded_pair()
    tokenizer.padding_side = "left"
    if not plain:
        hs.attach(model, draft, config=hs.SpeculativeConfig(num_draft_tokens=4, reproducible=True))
    arguments = GRPOConfig(
        output_dir=output,
        max_steps=steps,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=num_tokens,
        learning_rate=3e-4,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    data = datasets.Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    trainer = Trainer(model, short_lines, arguments, train_dataset=data, processing_class=tokenizer)
    trainer.watch = Watch(model, draft.to(model.device), refresh_draft)
    trainer.add_callback(trainer.watch)
    trainer.train()
    return model, trainer.watch


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 8,
    plain: Annotated[bool, typer.Option("--plain", help="Attach no draft.")] = False,
    refresh_draft: Annotated[bool, typer.Option("--refresh-draft", help="Let the draft learn along.")] = False,
    output: Annotated[str, typer.Option(help="Folder of the trainer.")] = "grpo",
):
    """Train with GRPO; print what the rollouts of each step took."""
    model, watch = train(steps, plain, refresh_draft, output)
    table = Table("step", "accepted", "target passes")
    for step, rate, passes in watch.rows:
        table.add_row(str(step), f"{rate:.1%}", str(passes))
    Console().print(table)
    weights = torch.cat([weight.detach().flatten().double().cpu() for weight in model.parameters()])
    Console().print(f"sum of the weights' squares: {weights.square().sum():.9f}")


if __name__ == "__main__":
    typer.run(main)
