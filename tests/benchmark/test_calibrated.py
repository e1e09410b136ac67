"""A calibrated pair accepts as much as it is asked to, and costs no second set of weights."""

import pytest
import torch

from hf_speculative import benchmark
from hf_speculative.benchmark import shapes

OTHERS = {
    "qwen3": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "vocab_size": 512},
}


def fresh_acceptance(pair, temperature, seed=5, num_tokens=48):
    """Counted anew: the share of draft tokens kept where both models go on with a text that the calibration never saw."""
    torch.manual_seed(seed)
    prompts = torch.randint(1, 512, (16, 8))
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    text = pair.target.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=num_tokens, **sampling)
    with torch.no_grad():
        p, q = (model(text).logits[:, 7:-1] for model in (pair.target, pair.draft))
    if temperature == 0:
        return (p.argmax(-1) == q.argmax(-1)).float().mean().item()
    p, q = (p / temperature).softmax(-1), (q / temperature).softmax(-1)
    return torch.minimum(p, q).sum(-1).mean().item()


@pytest.mark.parametrize(("acceptance", "temperature"), [(0.3, 0.0), (0.8, 0.0), (0.8, 1.0), (0.95, 0.7)])
def test_a_pair_accepts_what_it_is_asked_to(pair, acceptance, temperature):
    calibration = pair.prepare(acceptance, temperature)
    assert calibration.acceptance == pytest.approx(acceptance, abs=0.04)
    assert fresh_acceptance(pair, temperature) == pytest.approx(acceptance, abs=0.08)
    assert calibration.entropy == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_architectures_are_calibrated(model_type):
    shape = shapes.Shape("small", model_type, 1, "nothing", OTHERS[model_type])
    pair = benchmark.CalibratedPair(shape, dtype=torch.float32, num_rows=16)
    assert pair.prepare(0.6, 1.0).acceptance == pytest.approx(0.6, abs=0.05)


def test_the_ends_of_the_scale(pair):
    assert pair.prepare(0, 0.0).acceptance < 0.05 and pair.prepare(0, 1.0).acceptance < 0.1
    assert pair.prepare(1, 1.0).acceptance == pytest.approx(1.0, abs=1e-5)


def test_the_draft_shares_every_tensor(pair):
    theirs = {parameter.data_ptr() for parameter in pair.target.parameters()}
    assert {parameter.data_ptr() for parameter in pair.draft.parameters()} < theirs
    assert pair.draft.config.num_hidden_layers == 1 and pair.target.config.num_hidden_layers == 4
    assert pair.draft.model.config is pair.draft.config and pair.target.model.config is pair.target.config


def test_calibrating_again_piles_up_no_rounding():
    pair = benchmark.CalibratedPair("tiny", dtype=torch.bfloat16, num_rows=4)
    pair.prepare(0.5, 1.0)
    before = {name: weight.clone() for name, weight in pair.target.named_parameters()}
    for acceptance in (1, 0, 0.9, 0.5):
        pair.prepare(acceptance, 1.0)
    assert all(torch.equal(before[name], weight) for name, weight in pair.target.named_parameters())


def test_the_draft_may_be_the_target():
    pair = benchmark.CalibratedPair("tiny", draft_is_target=True)
    assert pair.draft is pair.target and pair.prepare(0.8, 0.0).acceptance == 1.0
