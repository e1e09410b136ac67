"""Shapes and cells of the benchmark."""

import re

import pytest
import torch

from hf_speculative import benchmark
from hf_speculative.benchmark import passes, random_weights, shapes

#: weights that a pass reads, embeddings left out: the drafts that the shapes stand for, by their published configs
NAMED_DRAFTS = {
    "gpt2-xl": 123.5e6,
    "tinyllama-1.1b": 12 * (4 * 768**2 + 3 * 768 * 3072) + 32000 * 768,
    "llama-8b": 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192) + 128256 * 2048,
    "qwen-32b": 28 * (2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072) + 151936 * 1024,
}


@pytest.mark.parametrize("name", NAMED_DRAFTS)
def test_a_shape_s_draft_costs_about_what_the_named_one_does(name):
    shape = shapes.SHAPES[name]
    with torch.device("meta"), random_weights.no_init_weights():
        target = random_weights.AutoModelForCausalLM.from_config(shape.make_config(), dtype=torch.bfloat16)
    total = passes.weight_bytes(target)
    shares = [passes.weight_bytes(random_weights.first_layers(target, layers)) / total for layers in range(1, 6)]
    named = 2 * NAMED_DRAFTS[name] / total
    best = min(range(1, 6), key=lambda layers: abs(shares[layers - 1] - named))
    assert shape.draft_layers == best
    said = [float(number) for number in re.findall(r"([\d.]+) %", shape.stands_for)]
    assert said == pytest.approx([100 * shares[best - 1], 100 * named], abs=0.1)


def test_a_sweep_takes_one_list_at_a_time_or_all_combinations():
    lists = {"batch": [1, 2, 4], "num_draft_tokens": [4, 8], "acceptance": [0.8, 0.3]}
    cells = benchmark.sweep(**lists)
    assert [(c.batch, c.num_draft_tokens, c.acceptance) for c in cells] == [
        *[(1, 4, 0.8), (2, 4, 0.8), (4, 4, 0.8), (1, 8, 0.8)],
        (1, 4, 0.3),
    ]
    assert len(benchmark.sweep(**lists, grid=True)) == 12
    with pytest.raises(ValueError, match=r"`batch=0`: give a number of 1 or more"):
        benchmark.sweep(batch=[0])
