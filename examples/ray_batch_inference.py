"""Any number of prompts on a cluster, with Ray Data. Each actor holds a pair of models; nothing is lost when one dies.

python examples/ray_batch_inference.py --prompts prompts.jsonl --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B --num-gpus 1

Without any argument: a few prompts for the embedded pair, in two actors on this machine. Every node needs the package and
`ray_predictor.py`. An actor
has as many threads as CPUs (`--num-cpus`).
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Annotated

import ray
import typer
from ray_predictor import SpeculativePredictor

from hf_speculative.command.prompts import BEGINNINGS

COUNTS = ("num_new_tokens", "num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")


def answer(prompts: ray.data.Dataset, output: Path, num_actors: int, batch_size: int, **actor) -> Counter:
    """Write the answers as JSON lines, each as soon as it is ready; returns their totals.

    Args:
        prompts: rows, with a column of prompts.
        **actor: anything else that `map_batches` takes: `fn_constructor_kwargs`, `num_gpus`, `num_cpus`.
    """
    # A block a batch: actors share the work evenly, and one that dies has a single batch to be answered again. Ray does that,
    # and starts the actor again, by itself.
    # The prompts are read first, since actors that hold all CPUs of a small machine would wait for them for ever.
    batches = prompts.repartition(target_num_rows_per_block=batch_size).materialize()
    pool = ray.data.ActorPoolStrategy(size=num_actors)
    answers = batches.map_batches(SpeculativePredictor, compute=pool, batch_size=batch_size, **actor)
    totals: Counter = Counter()
    with output.open("w", buffering=1) as lines:
        for row in answers.iter_rows():
            if math.isnan(row["draft_acceptance_rate"]):  # JSON has no nan
                row["draft_acceptance_rate"] = None
            lines.write(json.dumps(row, default=str) + "\n")
            totals.update(rows=1, errors=int(bool(row["error"])), **{name: row[name] for name in COUNTS})
    return totals


def main(
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file, or a folder of them.")] = None,
    column: Annotated[str, typer.Option("--field", help="The field that holds the prompt.")] = "prompt",
    output: Annotated[Path, typer.Option(help="The file to write, on the machine this runs on.")] = Path("answers.jsonl"),
    model: Annotated[str | None, typer.Option(help="Target: a Hub name or folder. Default: the embedded pair.")] = None,
    draft_model: Annotated[str | None, typer.Option(help="Draft: a Hub name or folder.")] = None,
    num_draft_tokens: Annotated[int | None, typer.Option(help="Tokens to draft a round.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of a row.")] = 32,
    rows_at_once: Annotated[int, typer.Option(help="Rows that an actor decodes together.")] = 8,
    batch_size: Annotated[int, typer.Option(help="Rows handed to an actor; several times as many.")] = 64,
    num_actors: Annotated[int, typer.Option(help="Actors, each with both models.")] = 2,
    num_cpus: Annotated[float, typer.Option(help="CPUs of an actor.")] = 1,
    num_gpus: Annotated[float, typer.Option(help="GPUs of an actor.")] = 0,
):
    """Answer prompts on a Ray cluster; on this machine alone where none is found."""
    ray.init(ignore_reinit_error=True)
    if prompts is None:
        dataset = ray.data.from_items([{"id": n, column: prompt} for n, prompt in enumerate(BEGINNINGS[:2])])
    else:
        dataset = ray.data.read_json(str(prompts), lines=True)
    settings = {
        "model": model,
        "draft_model": draft_model,
        "prompt_column": column,
        "batch_size": rows_at_once,
        "max_new_tokens": max_new_tokens,
        "num_draft_tokens": num_draft_tokens,
    }
    actor = {"fn_constructor_kwargs": settings, "num_cpus": num_cpus, "num_gpus": num_gpus}
    totals = answer(dataset, output, num_actors, batch_size, **actor)
    print(*(f"{name}: {value}" for name, value in totals.items()), sep="\n")
    if totals["num_draft_tokens"]:  # quotients of totals: a mean of rates would be another number
        print(f"draft_acceptance_rate: {totals['num_accepted_draft_tokens'] / totals['num_draft_tokens']:.3f}")
        print(f"mean_acceptance_length: {1 + totals['num_accepted_draft_tokens'] / totals['num_spec_steps']:.2f}")
    print(f"answers in {output}")


if __name__ == "__main__":
    typer.run(main)
