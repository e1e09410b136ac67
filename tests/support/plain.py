"""What plain `generate` gives, and that ours gives the same."""

import inspect

import torch
from transformers import ContinuousBatchingConfig, StoppingCriteria, set_seed
from transformers.generation.streamers import BaseStreamer

import hf_speculative as hs
from hf_speculative.call.configuration import as_keywords
from tests.support import tiny

NEW = 24
#: for `ContinuousBatchingConfig`, whose pages are in other numbers with flash attention; 5.17 does not switch to it
NO_FLASH = dict.fromkeys({"auto_switch_to_flash"} & {*inspect.signature(ContinuousBatchingConfig).parameters}, False)


def plain(model, inputs, **kwargs):
    return model.generate(**inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **kwargs)


def ours(model, inputs, **kwargs):
    """`generate` of this package, greedy; settings may be given by name, as fields of a config."""
    return hs.generate(model, **inputs, do_sample=False, max_new_tokens=NEW, pad_token_id=0, **as_keywords(kwargs))


def agrees(model, call, seed=0, **drafts):
    """`call` gives plain `generate`'s tokens with drafts; sampled, under a seed, which leaves the generator as plain does.

    Args:
        drafts: what only the call with drafts is given; settings by name, as fields of a config.
    """
    own = {"reproducible": True} if call.get("do_sample") else {}
    set_seed(seed)
    expected, rand = model.generate(**call), torch.rand(1)
    set_seed(seed)
    with hs.record() as stats:
        found = hs.generate(model, **call, **as_keywords(drafts), **own)
    assert found.tolist() == expected.tolist()
    assert not own or torch.rand(1) == rand
    return stats


def same_as_plain(model, inputs, settings=None, **kwargs):
    """Greedy; both get `settings`."""
    call = inputs | {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0} | (settings or {})
    return agrees(model, call, **kwargs)


def reproduces_plain(model, batch_sizes=(1, 3), settings=None, **kwargs):
    """Sampled, for a seed each; both get `settings`."""
    common = {"do_sample": True, "max_new_tokens": 14, "pad_token_id": 0} | (settings or {})
    for seed, batch_size in enumerate(batch_sizes):
        agrees(model, tiny.prompts(batch_size, seed=seed) | common, seed, **kwargs)


def takes_lanes(model, prompts, settings=None, batch_size=3, **kwargs):
    """Rows that wait and take the place of others get what plain `generate` gives each alone; greedy, and rows end apart."""
    common = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": [3, 17, 40]}
    settings = common | (settings or {})
    with hs.record() as stats:
        rows = list(hs.generate_batches(model, prompts, batch_size=batch_size, **settings, **as_keywords(kwargs)))
    plain = [model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in prompts]
    assert [row.new_ids for row in rows] == plain and len({*map(len, plain)}) > 1
    return stats


def state_of(model):
    """All that a call must leave alone: configs, the modules and their attributes, the weights' identities."""
    modules = {name: (id(module), sorted(vars(module))) for name, module in model.named_modules()}
    weights = {name: (weight.data_ptr(), weight.requires_grad) for name, weight in model.named_parameters()}
    generation_config = getattr(model, "generation_config", None)
    defaults = generation_config.to_dict() if generation_config is not None else None
    return model.config.to_dict(), defaults, modules, weights, model.training


def speculates(call) -> bool:
    """Whether a call drafts; one that does not is plain altogether."""
    with hs.record() as stats:
        call()
    assert stats.num_draft_tokens or not stats.num_calls
    return bool(stats.num_calls)


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
