"""What two processes do as one group, over gloo on the CPU, each leaving its result in a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

import hf_speculative as hs
from tests.support import tiny

#: whole batches, in one process and in two: 8 to learn from, 2 held out
PROMPTS = torch.randint(2, tiny.VOCAB, (10, 5), generator=torch.Generator().manual_seed(0)).tolist()


def evaluate(folder: Path) -> dict:
    """Metrics of evaluations whose rows are shared evenly, and not."""
    from tests.support.trainers import CONSTANT, SpeculativeTrainer, arguments, rows

    target = tiny.llama()
    given = {"generation_kwargs": {"max_new_tokens": 8}, "draft_model": tiny.noisy_copy(target)}
    own = arguments(folder, per_device_eval_batch_size=2)
    trainer = SpeculativeTrainer(target, own, speculative_config=CONSTANT, **given)
    assert trainer.args.world_size == 2
    return {"even": trainer.evaluate(rows(12)), "uneven": trainer.evaluate(rows(11))}


def train(folder: Path, store: str | None = None) -> dict:
    """Losses and acceptance of a run, with or without a store."""
    from hf_speculative.distillation.sampling_params import SamplingParams
    from hf_speculative.training import run
    from hf_speculative.training.settings import Settings

    lengths = {"steps": 4, "num_evaluations": 2, "batch_size": 4, "max_new_tokens": 10, "num_draft_tokens": 3}
    settings = Settings(head="layers:1", learning_rate=0.05, use=SamplingParams(temperature=0), **lengths)
    # Adam would blow up what sums in another order leave of gradients that are zero.
    arguments = {"tokenizer": hs.embedded_pair()[2], "optim": "sgd", "store": store and folder / store}
    result = run.train(tiny.llama(), [{"prompt": ids} for ids in PROMPTS], folder / "run", settings, **arguments)
    return {"losses": result.losses, "lengths": [point.acceptance_length["greedy"] for point in result.curve]}


def results(function, folder: Path, *more: str) -> list[dict]:
    """What `function` gives in each of two processes."""
    command = [sys.executable, "-m", __name__, function.__name__, str(folder), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def join(rank: int, folder: Path, **given) -> None:
    """Become one of two that meet in a file: a port that is free now may be taken when they come to use it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    # accelerate wants them, and uses the group that is there
    os.environ |= {"MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    meeting = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, **given)


def _in_group(rank: int, name: str, folder: Path, *more: str) -> None:
    join(rank, folder)
    (folder / f"{rank}.json").write_text(json.dumps(globals()[name](folder, *more)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    assert not any(name.startswith("transformers.trainer") for name in sys.modules), "only whoever trains imports it"
    torch.set_num_threads(1)
    # Forked, so that most of what is imported is imported once; no thread runs yet.
    arguments = (sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
    torch.multiprocessing.start_processes(_in_group, arguments, nprocs=2, start_method="fork")
