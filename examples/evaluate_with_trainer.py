"""Evaluation in Seq2SeqTrainer, with a draft and without: the same predictions, sooner.

python examples/evaluate_with_trainer.py --batch-size 8 --repeats 5

The pair is the T5 of compare_encoder_decoder.py, 12 layers with random weights, so nothing is downloaded; sampled under the
same seed, or greedy. Prints the median over repeats of the ratio of whole evaluations, the loss included, with its range.
"""

import statistics
import tempfile
from typing import Annotated

import torch
import typer
from compare_encoder_decoder import NUM_LAYERS, SCALES, VOCAB, WIDTH, pair, t5
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import Seq2SeqTrainingArguments, set_seed

import hf_speculative as hs


def main(
    batch_size: Annotated[int, typer.Option(help="Rows evaluated at once.")] = 8,
    num_batches: Annotated[int, typer.Option(help="Batches of the evaluation.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens for each prompt.")] = 64,
    num_draft_tokens: Annotated[int, typer.Option(help="Tokens to draft a round.")] = 4,
    num_draft_layers: Annotated[int, typer.Option(help=f"Decoder layers of the draft, of {NUM_LAYERS}.")] = 2,
    noise: Annotated[float, typer.Option(help="Noise on the draft's layers, in standard deviations.")] = 0.02,
    sample: Annotated[bool, typer.Option(help="Sample, or decode greedily: random weights then repeat themselves.")] = True,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats.")] = 5,
):
    """Compare evaluations of one trainer, plain and speculative."""
    target, draft = pair(t5, num_draft_layers, SCALES["T5"], noise)
    generator = torch.Generator().manual_seed(0)
    prompts, answers = torch.randint(1, VOCAB, (2, batch_size * num_batches, 32), generator=generator)
    data = [{"input_ids": ids, "labels": labels} for ids, labels in zip(prompts, answers, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            folder,
            predict_with_generate=True,
            per_device_eval_batch_size=batch_size,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = hs.SpeculativeSeq2SeqTrainer(
            target,
            args,
            draft_model=draft,
            speculative_config=hs.SpeculativeConfig(num_draft_tokens=num_draft_tokens, reproducible=sample),
            generation_kwargs={"max_new_tokens": max_new_tokens, "do_sample": sample, "top_k": 0 if sample else None},
        )
        ratios, plain_speeds = [], []
        for repeat in track(range(repeats + 1), "evaluating", transient=True, console=Console(stderr=True)):
            set_seed(repeat)
            plain = trainer.predict(data, draft_model=None)
            set_seed(repeat)
            speculative = trainer.predict(data)
            if repeat:  # the first is the warm-up
                ratios.append(plain.metrics["test_runtime"] / speculative.metrics["test_runtime"])
                plain_speeds.append(len(data) * max_new_tokens / plain.metrics["test_runtime"])
    same = (plain.predictions == speculative.predictions).all(axis=1).sum()
    table = Table(title=f"T5, {NUM_LAYERS} layers of {WIDTH}, {max_new_tokens} new tokens, {num_draft_tokens} draft tokens")
    for name in ("batch", "plain tokens/s", "accepted", "mean acceptance length", "speedup (range)", "identical"):
        table.add_column(name, justify="right")
    table.add_row(
        str(batch_size),
        f"{statistics.median(plain_speeds):.0f}",
        f"{speculative.metrics['test_draft_acceptance_rate']:.1%}",
        f"{speculative.metrics['test_mean_acceptance_length']:.2f}",
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{same} of {len(data)}",
    )
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
