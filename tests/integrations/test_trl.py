"""TRL's GRPO, its rollouts through a draft: `examples/train_with_trl.py`."""

import copy
import random
import runpy
import sys
from pathlib import Path

import pytest
import torch

import hf_speculative as hs

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
    ways = {"draft": {}, "plain": {"plain": True}, "learning": {"learn": True, "memory": True}}
    runs = {name: train(3, **given, output=str(tmp_path), num_tokens=12) for name, given in ways.items()}
    weights = {name: [weight.detach() for weight in model.parameters()] for name, (model, *_) in runs.items()}
    for name in ("draft", "learning"):
        assert all(torch.equal(ours, plain) for ours, plain in zip(weights[name], weights["plain"], strict=True)), name
        steps = runs[name][1]
        assert len(steps) == 3 and all(passes < 12 and kept > 1.1 for _, kept, passes in steps)
    assert runs["plain"][1] == []
    learner = runs["learning"][2]
    assert learner.num_steps > 0 and learner.texts and learner.held_out


def _trained(kind: str, folder, attached: bool, **settings):
    """Rewards, losses and weights of two steps of a TRL trainer, and the draft tokens that its rollouts kept."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    torch.manual_seed(0)
    random.seed(0)
    model, draft, tokenizer = copy.deepcopy(hs.embedded_pair())
    tokenizer.padding_side = "left"
    if attached:
        hs.attach(model, draft, num_draft_tokens=4, reproducible=True)
    sizes = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
    quiet = {"save_strategy": "no", "report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True}
    quiet |= {"dataloader_pin_memory": False, "logging_steps": 1, "learning_rate": 3e-4, "output_dir": str(folder)}
    numbers = iter(range(10_000))

    def reward(completions, **others):
        """Differs within a group whose texts are equal."""
        return [len(set(text)) + 0.5 * (next(numbers) % 3) for text in completions]

    arguments = getattr(trl, f"{kind}Config")(**sizes, **quiet, **settings)
    data = datasets.Dataset.from_list([{"prompt": prompt} for prompt in ("import os\n", "class Node:\n")])
    trainer = getattr(trl, f"{kind}Trainer")(model, reward, arguments, train_dataset=data, processing_class=tokenizer)
    with hs.record() as stats:
        trainer.train()
    log = [(step["reward"], step["loss"]) for step in trainer.state.log_history if "loss" in step]
    return log, [weight.detach() for weight in model.parameters()], stats.num_accepted_draft_tokens


PAGES = {"num_blocks": 16, "max_batch_tokens": 128}
BATCHED = {"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": PAGES}


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_both_switches_train_as_without_a_draft(tmp_path, kind):
    """Bit for bit with `generate` and `generate_batch`; where one token is certain, also beside transformers' own pages."""
    log, weights, num_accepted = _trained(kind, tmp_path, attached=False)
    assert len(log) == 2 and not num_accepted
    for settings in ({}, BATCHED):
        found = _trained(kind, tmp_path, attached=True, **settings)
        assert found[0] == log and found[2] > 10
        assert all(torch.equal(ours, plain) for ours, plain in zip(found[1], weights, strict=True))
    certain, (ours, _, num_accepted) = (_trained(kind, tmp_path, attached, top_k=1, **BATCHED) for attached in (False, True))
    assert num_accepted > 10 and [reward for reward, _ in ours] == [reward for reward, _ in certain[0]]
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in certain[0]], abs=1e-5)


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
def test_online_dpo_trains_as_without_a_draft(tmp_path):
    dpo, datasets = pytest.importorskip("trl.experimental.online_dpo"), pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"prompt": prompt} for prompt in ("import os\n", "class Node:\n")])
    found = []
    for attached in (False, True):
        torch.manual_seed(0)
        model, draft, tokenizer = copy.deepcopy(hs.embedded_pair())
        if attached:
            hs.attach(model, draft, num_draft_tokens=4, reproducible=True)
        quiet = {"save_strategy": "no", "report_to": [], "use_cpu": True, "bf16": False, "output_dir": str(tmp_path)}
        sizes = {"max_steps": 2, "per_device_train_batch_size": 2, "max_new_tokens": 16, "learning_rate": 3e-4}
        config = dpo.OnlineDPOConfig(**quiet, **sizes, logging_steps=1, generation_kwargs={"use_cache": True})
        trainer = dpo.OnlineDPOTrainer(
            model,
            reward_funcs=lambda completions, **others: [len(set(text)) for text in completions],
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
        )
        with hs.record() as stats:
            trainer.train()
        log = [(step["objective/scores"], step["loss"]) for step in trainer.state.log_history if "loss" in step]
        found.append((log, [weight.detach() for weight in model.parameters()], stats.num_accepted_draft_tokens))
    (log, weights, num_accepted), (ours, others, num_drafted) = found
    assert ours == log and len(log) == 2 and num_drafted > 10 and not num_accepted
    assert all(torch.equal(a, b) for a, b in zip(others, weights, strict=True))
