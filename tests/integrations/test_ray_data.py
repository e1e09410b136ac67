"""`examples/ray_predictor.py` as a plain callable, and once as an actor of a real Ray job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ray_predictor import COLUMNS, SpeculativePredictor

ROOT = Path(__file__).parents[2]
PROMPTS = ["import os\n", "def main():\n", "class A:\n", "x = [1, 2,", "return ", "for i in", "import sys\n", "print("]


def column(values) -> np.ndarray:
    cells = np.empty(len(values), object)
    cells[:] = values
    return cells


def plainly(pair, prompt: str, **settings) -> str:
    ids = pair[2](prompt, return_tensors="pt")
    output = pair[0].generate(**ids, do_sample=False, **settings)
    return pair[2].decode(output[0, ids.input_ids.shape[1] :], skip_special_tokens=True)


def test_answers_are_plain_generates(pair):
    predictor = SpeculativePredictor(max_new_tokens=10, batch_size=2, num_draft_tokens=3)  # the embedded pair
    ids = np.arange(4)
    answers = predictor({"prompt": np.array(PROMPTS[:4]), "id": ids})
    assert list(answers) == ["prompt", "id", *COLUMNS] and answers["id"] is ids
    assert list(answers["generated_text"]) == [plainly(pair, prompt, max_new_tokens=10) for prompt in PROMPTS[:4]]
    assert answers["num_new_tokens"].tolist() == [10] * 4 and set(answers["error"]) == {""}
    drafted, accepted = answers["num_draft_tokens"], answers["num_accepted_draft_tokens"]
    assert 0 < accepted.sum() < drafted.sum() and (answers["draft_acceptance_rate"] == accepted / drafted).all()
    assert all(answers[name].dtype == dtype for name, dtype in COLUMNS.items())
    nothing = predictor({"prompt": column([])})
    assert all(nothing[name].shape == (0,) and nothing[name].dtype == dtype for name, dtype in COLUMNS.items())


def test_a_bad_row_has_an_error_and_the_others_their_answers(pair):
    target, draft, tokenizer = pair
    predictor = SpeculativePredictor(target, draft, tokenizer=tokenizer, prompt_column="text", max_new_tokens=8)
    rows = ["import os\n", "", None, float("nan"), [5, 6], np.array([7, 8]), "def main():\n"]
    answers = predictor({"text": column(rows)})
    assert [bool(error) for error in answers["error"]] == [False, True, True, True, False, False, False]
    assert "ValueError: prompt 1 is empty" in answers["error"][1] and "NoneType" in answers["error"][2]
    assert answers["num_new_tokens"].tolist() == [8, 0, 0, 0, 8, 8, 8] and answers["generated_text"][1] == ""
    assert np.isnan(answers["draft_acceptance_rate"][1])
    for row in (0, 6):
        assert answers["generated_text"][row] == plainly(pair, rows[row], max_new_tokens=8)
    with pytest.raises(KeyError, match="`prompt_column='text'` is not among the columns prompt"):
        predictor({"prompt": column(["x"])})


def test_a_batch_answered_again_gets_the_same_answers(pair):
    target, draft, tokenizer = pair
    settings = {"tokenizer": tokenizer, "max_new_tokens": 12, "batch_size": 2, "do_sample": True, "top_k": 0}
    first, again = SpeculativePredictor(target, draft, **settings), SpeculativePredictor(target, draft, **settings)
    batch = {"prompt": column(PROMPTS[:3]), "id": np.arange(3)}
    before = torch.get_rng_state()
    answers = first(batch)["generated_text"].tolist()
    again({"prompt": column(["print("])})
    assert again(batch)["generated_text"].tolist() == answers == first(batch)["generated_text"].tolist()
    assert torch.equal(before, torch.get_rng_state())  # the caller's own
    assert first({**batch, "id": np.arange(3, 6)})["generated_text"].tolist() != answers
    other_seed = SpeculativePredictor(target, draft, seed=1, **settings)
    assert other_seed(batch)["generated_text"].tolist() != answers


@pytest.mark.release
def test_the_job(pair, tmp_path):
    pytest.importorskip("ray")
    rows = [{"id": n, "prompt": prompt} for n, prompt in enumerate([*PROMPTS, ""])]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sizes = {"max-new-tokens": 10, "num-draft-tokens": 3, "rows-at-once": 2, "batch-size": 2, "num-actors": 1}
    given = {"prompts": "prompts.jsonl", "output": "answers.jsonl"} | sizes
    command = [sys.executable, str(ROOT / "examples" / "ray_batch_inference.py")]
    command += [part for name, value in given.items() for part in (f"--{name}", str(value))]
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    # By its own choice Ray's workers give way to every other process, the rest of the test suite for example.
    of_ray = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    environment = os.environ | of_ray | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    texts = {answer["id"]: answer["generated_text"] for answer in answers}
    expected = [plainly(pair, prompt, max_new_tokens=10) for prompt in PROMPTS]
    assert len(answers) == len(rows) and [texts[n] for n in range(len(rows))] == [*expected, ""]
    assert {"rows: 9", "errors: 1", "num_new_tokens: 80"} <= set(done.stdout.splitlines())
