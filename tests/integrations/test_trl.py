"""TRL's GRPO, its rollouts through a draft: `examples/train_with_trl.py`."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_with_trl.py"


def test_without_trl_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit, match=r"needs TRL: pip install 'hf_speculative\[trl\]'"):
        runpy.run_path(str(EXAMPLE))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TRL's own, of names that transformers is about to change
def test_a_run_with_a_draft_ends_with_the_weights_of_one_without(tmp_path):
    """Rollouts are the same, seed for seed, while the model moves; also where the draft learns along."""
    pytest.importorskip("trl")
    train = runpy.run_path(str(EXAMPLE))["train"]
    ways = {"draft": {}, "plain": {"plain": True}, "refreshed": {"refresh_draft": True}}
    runs = {name: train(3, **given, output=str(tmp_path), num_tokens=12) for name, given in ways.items()}
    weights = {name: [weight.detach() for weight in model.parameters()] for name, (model, _) in runs.items()}
    for name in ("draft", "refreshed"):
        assert all(torch.equal(ours, plain) for ours, plain in zip(weights[name], weights["plain"], strict=True)), name
        steps = runs[name][1].rows
        assert len(steps) == 3 and all(passes < 12 and rate > 0.1 for _, rate, passes in steps)
    assert runs["plain"][1].rows == []
    drafts = {name: [weight.detach() for weight in watch.draft.parameters()] for name, (_, watch) in runs.items()}
    assert all(torch.equal(a, b) for a, b in zip(drafts["draft"], drafts["plain"], strict=True)), "left as it was"
    assert not all(torch.equal(a, b) for a, b in zip(drafts["refreshed"], drafts["plain"], strict=True))
