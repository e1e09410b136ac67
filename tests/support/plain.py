"""What plain `generate` gives, and that ours gives the same."""

import torch
from transformers import StoppingCriteria, set_seed
from transformers.generation.streamers import BaseStreamer

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from tests.support import tiny

NEW = 24


def plain(model, inputs, **kwargs):
    return model.generate(**inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **kwargs)


def ours(model, inputs, **kwargs):
    """`generate` of this package, greedy; settings may be given by name, as fields of a config."""
    return hs.generate(model, **inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **as_keywords(kwargs))


def same_as_plain(model, inputs, **kwargs):
    settings = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
    expected = model.generate(**inputs, **settings)
    with hs.record() as stats:
        found = hs.generate(model, **inputs, **settings, **as_keywords(kwargs))
    assert found.tolist() == expected.tolist()
    return stats


def reproduces_plain(model, batch_sizes=(1, 3), settings=None, **kwargs):
    """Sampled output is plain `generate`'s, seed for seed; both get `settings`."""
    common = {"do_sample": True, "max_new_tokens": 14, "pad_token_id": 0} | (settings or {})
    for seed, batch_size in enumerate(batch_sizes):
        settings = tiny.prompts(batch_size, seed=seed) | common
        set_seed(seed)
        expected, rand = model.generate(**settings), torch.rand(1)
        set_seed(seed)
        found = hs.generate(model, **settings, **as_keywords(kwargs), reproducible=True)
        assert found.tolist() == expected.tolist() and torch.rand(1) == rand


def state_of(model):
    """All that a call must leave alone: configs, the modules and their attributes, the weights' identities."""
    modules = {name: (id(module), sorted(vars(module))) for name, module in model.named_modules()}
    weights = {name: (weight.data_ptr(), weight.requires_grad) for name, weight in model.named_parameters()}
    generation_config = getattr(model, "generation_config", None)
    defaults = generation_config.to_dict() if generation_config is not None else None
    return model.config.to_dict(), defaults, modules, weights, model.training


class Collect(BaseStreamer):
    def __init__(self):
        self.pieces, self.ended = [], False

    def put(self, value):
        self.pieces.append(value)

    def end(self):
        self.ended = True


class LastToken(StoppingCriteria):
    def __init__(self, token):
        self.token, self.calls = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.calls.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def same(found, expected):
    """Nested tuples of tensors: shapes equal, numbers close."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        return
    assert (found is None) == (expected is None)
    for one, other in zip(found or (), expected or (), strict=True):
        same(one, other)
