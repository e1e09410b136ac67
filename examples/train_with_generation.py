"""Generating inside a training loop, as GRPO does: the model samples with its draft, then learns from what it wrote.

python examples/train_with_generation.py --steps 12
python examples/train_with_generation.py --steps 12 --train-draft

The embedded pair, REINFORCE in plain torch, gradient checkpointing on. The samples have the target's own distribution
however far it has moved, so training is what it would be without a draft. But the draft falls behind, and fewer of its guesses
are accepted. With `--train-draft` it learns from the same samples.
"""

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

import hf_speculative as hs

PROMPTS = ["def read(path):\n", "import os\n", "class Node:\n", "for name in names:\n"]


def reward(text: str) -> float:
    """Short lines, of 20 characters at most."""
    lines = text.splitlines() or [""]
    return sum(len(line) <= 20 for line in lines) / len(lines)


def log_probs(model, sequences, mask, num_new: int):
    """Log-probability of each new token, `(batch, num_new)`."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=sequences, attention_mask=mask, position_ids=positions, use_cache=False).logits
    distribution = logits[:, -num_new - 1 : -1].float().log_softmax(-1)
    return distribution.gather(-1, sequences[:, -num_new:, None]).squeeze(-1)


def main(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 12,
    num_samples: Annotated[int, typer.Option(help="Completions of each prompt.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of a completion.")] = 24,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam, for both models.")] = 3e-4,
    train_draft: Annotated[bool, typer.Option(help="Let the draft learn from the samples, too.")] = False,
):
    """Sample with the draft, score, learn; print how reward and acceptance move."""
    torch.manual_seed(0)
    model, draft, tokenizer = hs.embedded_pair()
    # The first name is that of newer versions of transformers.
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    hs.attach(model, draft, config=hs.SpeculativeConfig(num_draft_tokens=4))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    draft_optimizer = torch.optim.Adam(draft.parameters(), lr=learning_rate)
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    table = Table(title=f"{len(PROMPTS) * num_samples} completions of {max_new_tokens} tokens a step")
    for name in ("step", "reward", "accepted", "mean acceptance length", "target passes"):
        table.add_column(name, justify="right")

    model.train()
    for step in range(steps):
        with hs.record() as stats:
            sequences = model.generate(
                **inputs,
                do_sample=True,
                top_k=0,
                num_return_sequences=num_samples,
                max_new_tokens=max_new_tokens,
                min_new_tokens=max_new_tokens,
            )
        new = sequences[:, inputs.input_ids.shape[1] :]
        rewards = torch.tensor([reward(text) for text in tokenizer.batch_decode(new, skip_special_tokens=True)])
        groups = rewards.view(len(PROMPTS), num_samples)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        mask = torch.cat([inputs.attention_mask.repeat_interleave(num_samples, 0), torch.ones_like(new)], 1)

        loss = -(advantages[:, None] * log_probs(model, sequences, mask, new.shape[1])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if train_draft:
            draft_loss = -log_probs(draft, sequences, mask, new.shape[1]).mean()
            draft_optimizer.zero_grad()
            draft_loss.backward()
            draft_optimizer.step()

        if step % max(1, steps // 6) == 0 or step == steps - 1:
            table.add_row(
                str(step),
                f"{rewards.mean():.2f}",
                f"{stats.draft_acceptance_rate:.1%}",
                f"{stats.mean_acceptance_length:.2f}",
                str(stats.num_target_forwards),
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
