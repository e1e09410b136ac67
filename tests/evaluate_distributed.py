"""One process of a distributed evaluation, which test_training.py starts: its metrics go to the file that is named."""

import json
import sys
import tempfile

import tiny
import torch
from test_training import CONSTANT, SpeculativeTrainer, arguments, rows

target = tiny.llama()
trainer = SpeculativeTrainer(
    target,
    arguments(tempfile.mkdtemp(), per_device_eval_batch_size=2),
    generation_kwargs={"max_new_tokens": 8},
    draft_model=tiny.noisy_copy(target),
    speculative_config=CONSTANT,
    speedup_batches=1,
)
assert trainer.args.world_size == 2
found = {"even": trainer.evaluate(rows(12)), "uneven": trainer.evaluate(rows(11))}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
