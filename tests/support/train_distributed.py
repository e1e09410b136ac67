"""A draft trained in two processes, started by tests/training/test_distributed.py: what was logged goes to files."""

import json
import os
import sys
from pathlib import Path

import torch

import hf_speculative as hs
from hf_speculative.training.run import train
from hf_speculative.training.sampling_params import SamplingParams
from hf_speculative.training.settings import Settings
from tests.support import tiny

WORLD_SIZE = 2
#: whole batches, in one process and in two: 8 to learn from, 2 held out
PROMPTS = [
    {"prompt": ids}
    for ids in torch.randint(2, tiny.VOCAB, (10, 5), generator=torch.Generator().manual_seed(0)).tolist()
]
SETTINGS = Settings(
    head="layers:1",
    steps=4,
    num_evaluations=2,
    batch_size=4,
    max_new_tokens=10,
    num_draft_tokens=3,
    learning_rate=0.05,
    use=SamplingParams(temperature=0),
)


def curves(folder: Path, where: Path | None = None) -> dict:
    """Losses and acceptance of a run, with a store in `where`."""
    # Adam would blow up what sums in another order leave of gradients that are zero.
    arguments = {"tokenizer": hs.embedded_pair()[2], "optim": "sgd", "store": where}
    result = train(tiny.llama(), PROMPTS, folder / "run", SETTINGS, **arguments)
    return {"losses": result.losses, "lengths": [point.acceptance_length["greedy"] for point in result.curve]}


def train_here(rank: int, folder: Path, how: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)}
    # accelerate wants them, and uses the group that is there
    os.environ |= {"MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    # They meet in a file: a port that is free now may be taken when they come to use it.
    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD_SIZE)
    (folder / f"{rank}.json").write_text(json.dumps(curves(folder, folder / "store" if how == "stores" else None)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Forked, so that what takes longest, importing, is done once; no thread runs yet.
    torch.multiprocessing.start_processes(
        train_here, (Path(sys.argv[1]), sys.argv[2]), nprocs=WORLD_SIZE, start_method="fork"
    )
