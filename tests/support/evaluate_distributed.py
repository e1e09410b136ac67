"""A distributed evaluation of two processes, started by test_trainer.py: metrics go to two files in the folder named."""

import json
import os
import sys
from pathlib import Path

import hf_speculative

assert hf_speculative and not any(name.startswith("transformers.trainer") for name in sys.modules)

import torch  # noqa: E402

from tests.support import tiny  # noqa: E402
from tests.support.trainers import CONSTANT, SpeculativeTrainer, arguments, rows  # noqa: E402

WORLD_SIZE = 2


def evaluate(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)}
    # They meet in a file: a port that is free now may be taken when they come to use it.
    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD_SIZE)
    target = tiny.llama()
    trainer = SpeculativeTrainer(
        target,
        arguments(folder, per_device_eval_batch_size=2),
        generation_kwargs={"max_new_tokens": 8},
        draft_model=tiny.noisy_copy(target),
        speculative_config=CONSTANT,
    )
    assert trainer.args.world_size == WORLD_SIZE
    found = {"even": trainer.evaluate(rows(12)), "uneven": trainer.evaluate(rows(11))}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    # Forked, so that what takes longest, importing, is done once; no thread runs yet.
    torch.multiprocessing.start_processes(evaluate, (Path(sys.argv[1]),), nprocs=WORLD_SIZE, start_method="fork")
