"""A real Ray job on this machine, for test_ray_data.py: the example as it is, with an actor that dies once in the middle.

python tests/support/ray_job.py FOLDER    reads FOLDER/prompts.jsonl, writes FOLDER/answers.jsonl
"""

import os
import sys
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import ray_batch_inference
from ray_predictor import SpeculativePredictor

FOLDER = Path(sys.argv[1])


class DiesOnce(SpeculativePredictor):
    """The process is gone between the answers to a batch and their delivery, the worst moment."""

    died = FOLDER / "died"

    def __call__(self, batch):
        answers = super().__call__(batch)
        if "die here" in batch["note"] and not self.died.exists():
            self.died.write_text(str(os.getpid()))
            os._exit(1)
        return answers


ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
ray_batch_inference.SpeculativePredictor = DiesOnce
# Each actor takes seconds to import torch; this one is there before its death and after.
settings = {"max_new_tokens": 10, "num_draft_tokens": 3, "rows_at_once": 2, "batch_size": 2, "num_actors": 1}
ray_batch_inference.main(prompts=FOLDER / "prompts.jsonl", output=FOLDER / "answers.jsonl", **settings)
ray.shutdown()
