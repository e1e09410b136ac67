"""`model.generate_batch` of an attached model: transformers' signature and results, with drafts."""

import copy
import inspect
import pickle

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

import hf_speculative as hs
from tests.support import tiny
from tests.support.cases import slow_but
from tests.support.plain import NO_FLASH

PROMPTS = [[5, 9, 11], [7], [5, 9, 11, 5, 9, 11, 5, 9], [3, 1, 4, 1, 5], [8, 8], [5, 9, 11]]
EOS = [7, 11, 13]
GREEDY = GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=EOS, pad_token_id=0)


@pytest.fixture
def plain():
    return tiny.llama()


@pytest.fixture
def attached(plain):
    model = copy.deepcopy(plain)
    yield hs.attach(model, tiny.noisy_copy(model), num_draft_tokens=4)
    hs.detach(model)


def batching(**settings) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64, **NO_FLASH, **settings)


def fields(outputs) -> dict:
    return {name: (output.prompt_ids, output.generated_tokens, output.status) for name, output in outputs.items()}


@pytest.mark.parametrize("lanes", slow_but([2, None], 2))
def test_greedy_requests_are_those_of_transformers_own(plain, attached, lanes):
    """Tokens, names, order, status, log-probabilities, stamps; and of each prompt alone."""
    settings = {"record_timestamps": True, "continuous_batching_config": batching(return_logprobs=True)}
    expected = plain.generate_batch(PROMPTS, GREEDY, **settings)
    settings["continuous_batching_config"] = batching(return_logprobs=True, max_requests_per_batch=lanes)
    with hs.record() as stats:
        found = attached.generate_batch(PROMPTS, GREEDY, **settings)
    assert stats.num_accepted_draft_tokens > 10 and stats.num_calls == 1
    assert list(found) == list(expected) and fields(found) == fields(expected)
    assert len({len(output.generated_tokens) for output in found.values()}) > 2, "rows must end at unequal lengths"
    for name, output in found.items():
        assert type(output) is type(expected[name]) and output.is_finished() and output.error is None
        assert output.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)
        assert len(output.timestamps) == len(output.generated_tokens) and output.timestamps == sorted(output.timestamps)
        assert output.created_time <= output.lifespan[0] <= output.timestamps[0]
        assert output.timestamps[-1] == output.lifespan[1]
        ids = torch.tensor([output.prompt_ids])
        assert output.generated_tokens == plain.generate(ids, GREEDY)[0, ids.shape[1] :].tolist()


def test_a_signature_and_results_without_extras(plain, attached):
    assert inspect.signature(attached.generate_batch) == inspect.signature(plain.generate_batch)
    output = attached.generate_batch([[5, 9]], GREEDY, max_new_tokens=3)["req_0"]
    assert len(output.generated_tokens) == 3 and output.logprobs == [] and output.timestamps is None
    assert attached.generate_batch([], GREEDY) == {}


def test_sampled_ones_are_reproducible_and_fork(plain):
    """The tokens of plain `generate` on the prompts as one batch, whatever the lanes; dropout is off, and comes back."""
    model = hs.attach(copy.deepcopy(plain), tiny.noisy_copy(plain), num_draft_tokens=3, reproducible=True).train()
    config = GenerationConfig(max_new_tokens=12, do_sample=True, temperature=0.9, top_k=0, num_return_sequences=2)
    ids = torch.tensor([[5, 9, 11]] * 4)
    torch.manual_seed(7)
    expected = plain.generate(ids, do_sample=True, temperature=0.9, top_k=0, max_new_tokens=12)[:, 3:].tolist()
    torch.manual_seed(7)
    found = model.generate_batch([[5, 9, 11]] * 2, config)
    assert list(found) == ["req_0__child#0", "req_0", "req_1__child#0", "req_1"]
    assert [output.generated_tokens for output in found.values()] == expected and model.training
    seeded = [model.generate_batch([[5, 9]] * 2, config, batching(seed=7, max_requests_per_batch=2)) for _ in range(2)]
    assert fields(seeded[0]) == fields(seeded[1])


def test_what_a_config_leaves_open_is_off(plain, attached):
    """Not the model's own, and not `top_k=50`, which `generate` would take."""
    for model in (plain, attached):
        model.generation_config.update(eos_token_id=EOS, repetition_penalty=5.0)
    config = GenerationConfig(max_new_tokens=20, do_sample=False)
    expected, found = (model.generate_batch(PROMPTS, copy.deepcopy(config), batching()) for model in (plain, attached))
    assert fields(found) == fields(expected) and {len(output.generated_tokens) for output in found.values()} == {20}
    seen: list = []
    attached.register_forward_hook(lambda *call: seen.append(call[-1].logits))
    sampled = GenerationConfig(max_new_tokens=1, do_sample=True)
    (output,) = attached.generate_batch([[5, 9]], sampled, batching(return_logprobs=True)).values()
    expected = seen[0][0, -1].float().log_softmax(-1)[output.generated_tokens[0]]
    assert output.logprobs == pytest.approx([expected.item()], abs=1e-4), "of 61 tokens, not of the 50 likeliest"


def test_sampled_tokens_have_the_targets_distribution(attached):
    config = GenerationConfig(max_new_tokens=2, do_sample=True, top_k=3)
    outputs = attached.generate_batch([[5, 9, 11]] * 3000, config, batching(max_requests_per_batch=500, seed=0))
    found = [output.generated_tokens for output in outputs.values()]
    assert len(found) == 3000
    with torch.no_grad():
        top = attached(torch.tensor([[5, 9, 11]])).logits[0, -1].topk(3)
    share = torch.tensor([sum(row[0] == token for row in found) / 3000 for token in top.indices.tolist()])
    assert (share - top.values.softmax(-1)).abs().max() < 0.04


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_own(attached, how):
    other = how(attached)
    assert other.generate_batch.attached.model is other
    assert fields(other.generate_batch(PROMPTS, GREEDY)) == fields(attached.generate_batch(PROMPTS, GREEDY))


def test_a_seed_means_nothing_to_greedy_requests(attached):
    assert fields(attached.generate_batch(PROMPTS, GREEDY, batching(seed=3))) == fields(
        attached.generate_batch(PROMPTS, GREEDY)
    )


def test_what_it_does_not_take_is_refused_before_a_forward(attached):
    config = GenerationConfig(do_sample=False)
    calls = (
        (ValueError, "nothing says how long a row may get", PROMPTS, config, {}),
        (ValueError, "max_time", PROMPTS, GenerationConfig(max_new_tokens=3, max_time=1.0), {}),
        (ValueError, "prompt 1 is empty", [[5], []], GREEDY, {}),
        (ValueError, "prompt 0", [[5, 99]], GREEDY, {}),
        (TypeError, "`generation_config` alone: put do_sample, top_k", [[5]], GREEDY, {"top_k": 3, "do_sample": 1}),
    )
    with tiny.CountForwards(attached) as count:
        for kind, message, prompts, given, more in calls:
            with pytest.raises(kind, match=message):
                attached.generate_batch(prompts, given, **more)
    assert not count.lengths


def test_settings_of_the_models_own_config(plain):
    """Copies of a prompt, and what the call's config leaves open, which is off: stop strings, which would need a tokenizer."""
    plain.generation_config.update(num_return_sequences=2, do_sample=True, max_new_tokens=8, eos_token_id=EOS, pad_token_id=0)
    attached = hs.attach(copy.deepcopy(plain), tiny.noisy_copy(plain))
    assert len(attached.generate_batch(PROMPTS[:2])) == 4
    attached.generation_config.update(num_return_sequences=None, stop_strings=["x"])
    assert fields(attached.generate_batch(PROMPTS, GREEDY)) == fields(plain.generate_batch(PROMPTS, GREEDY))


@pytest.mark.filterwarnings("ignore:.*continuous_batching_config:FutureWarning")
def test_batching_by_the_generation_config(attached):
    config = copy.deepcopy(GREEDY)
    config.continuous_batching_config = batching(return_logprobs=True)
    assert all(output.logprobs for output in attached.generate_batch(PROMPTS, config).values())
