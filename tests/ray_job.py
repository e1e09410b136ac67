"""A real Ray job on this machine, for test_ray.py: the example's own `answer`, with an actor that dies once in the middle.

python tests/ray_job.py FOLDER    reads FOLDER/prompts.jsonl and FOLDER/settings.json, writes FOLDER/answers.jsonl
and FOLDER/totals.json
"""

import json
import os
import sys
from pathlib import Path

import ray

from hf_speculative.batch_inference import SpeculativePredictor

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from ray_batch_inference import answer

FOLDER = Path(sys.argv[1])


class DiesOnce(SpeculativePredictor):
    """The process is gone between the answers to a batch and their delivery, the worst moment."""

    def __init__(self, marker: str, **settings):
        super().__init__(**settings)
        self.marker = Path(marker)

    def __call__(self, batch):
        answers = super().__call__(batch)
        if "die here" in batch["note"] and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            os._exit(1)
        return answers


ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text().splitlines()]
settings = json.loads((FOLDER / "settings.json").read_text()) | {"marker": str(FOLDER / "died")}
prompts = ray.data.from_items(rows, override_num_blocks=4)
# One actor, since each takes seconds to import torch; it holds the batches before its death and those after.
totals = answer(
    prompts, FOLDER / "answers.jsonl", num_actors=1, predictor=DiesOnce, fn_constructor_kwargs=settings, batch_size=2
)
(FOLDER / "totals.json").write_text(json.dumps(totals))
ray.shutdown()
