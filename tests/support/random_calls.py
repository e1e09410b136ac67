"""Random calls, compared with plain decoding: sources of drafts, processors, stops, batches and kinds of weights at once."""

import copy
import functools
import random

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, set_seed

import hf_speculative as hs
from hf_speculative.models import is_recurrent, linears, native
from tests.architectures.check import build
from tests.architectures.inputs import prompts as image_prompts
from tests.support import tiny
from tests.support.placement import quantised, torchao_or_skip

HYBRIDS = ["qwen3_5_text", "granitemoehybrid", "lfm2", "jamba"]
IMAGES = ["llava", "qwen2_5_vl", "gemma3", "qwen3_5"]


@functools.cache
def pair(kind: str):
    name = kind.partition("-")[0]
    mapping = "image-text" if name in IMAGES else "causal"
    target = tiny.build(name, seed=1) if name in tiny.ARCHITECTURES else build(mapping, name, seed=1)
    draft = tiny.noisy_copy(target, 0.1)
    return (quantised(target, torchao_or_skip()) if kind.endswith("-int8") else target), draft


class LastIn(StoppingCriteria):
    def __init__(self, tokens):
        self.tokens = torch.tensor(tokens)

    def again(self):
        return self

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens.to(input_ids.device))


class AfterSeveral(StoppingCriteria):
    """Ends a row at the n-th of some tokens, by a memory of each row."""

    def __init__(self, tokens, n):
        self.tokens, self.n, self.counts = torch.tensor(tokens), n, {}

    def again(self):
        return AfterSeveral(self.tokens.tolist(), self.n)

    def __call__(self, input_ids, scores, **kwargs):
        hits = torch.isin(input_ids[:, -1].cpu(), self.tokens).tolist()
        for row, is_hit in enumerate(hits):
            self.counts[row] = self.counts.get(row, 0) + is_hit
        return torch.tensor([self.counts[row] >= self.n for row in range(len(hits))], device=input_ids.device)


class Lowers(LogitsProcessor):
    """Makes what was said in the last few tokens less likely."""

    def __init__(self, n):
        self.n = n

    def __call__(self, input_ids, scores):
        return scores.scatter_add(1, input_ids[:, -self.n :], -torch.ones_like(scores[:, : self.n]))


def random_call(seed: int) -> tuple[str, dict, dict]:
    """The kind of pair, keywords of plain `generate`, and those that ask for drafts besides."""
    chance = random.Random(seed)
    kind = chance.choice(["llama", "llama", "mistral", "gpt2", "qwen2", "llama-int8", "gpt2-int8", *HYBRIDS, *IMAGES])
    batch_size = chance.choice([1, 1, 2, 3, 5])
    if kind in IMAGES:
        call = dict(image_prompts("image-text", pair(kind)[0], min(batch_size, 3), seed))
    else:
        call = dict(tiny.prompts(batch_size, width=chance.randint(2, 9), seed=seed))
    call |= {"max_new_tokens": chance.randint(1, 24), "pad_token_id": 0, "do_sample": chance.random() < 0.4}
    tokens = chance.sample(range(tiny.VOCAB), 12)
    stops = [[], [], [LastIn(tokens)], [AfterSeveral(tokens, 2)], [LastIn(tokens[:3]), AfterSeveral(tokens, 3)]]
    if criteria := chance.choice(stops):
        call["stopping_criteria"] = criteria
    if chance.random() < 0.4:
        call["eos_token_id"] = chance.sample(range(1, tiny.VOCAB), chance.choice([1, 5]))
    if chance.random() < 0.3:
        call["logits_processor"] = LogitsProcessorList([Lowers(chance.randint(1, 2))])
    for name, values in {
        "repetition_penalty": [1.3],
        "no_repeat_ngram_size": [2, 3],
        "min_new_tokens": [min(4, call["max_new_tokens"])],
        "suppress_tokens": [[3, 4, 5]],
    }.items():
        if chance.random() < 0.2:
            call[name] = chance.choice(values)
    if chance.random() < 0.15 and kind not in IMAGES:
        call["prefill_chunk_size"] = 3  # takes the universal path
    if call["do_sample"]:
        call |= {"temperature": chance.choice([0.5, 1.0, 1.7]), "top_k": chance.choice([0, 5])}
        call["top_p"] = chance.choice([1.0, 0.8])
    length = chance.choice([{}, {"num_draft_tokens": chance.randint(1, 7)}])
    source = chance.choice(["draft"] * 3 + ["auto", "suffix", None])
    drafts = {"draft_model": source} | length if source else {"prompt_lookup_num_tokens": 4}
    return kind, call, drafts | ({"reproducible": True} if call["do_sample"] else {})


def copied(call: dict) -> dict:
    criteria = [one.again() for one in call.get("stopping_criteria", [])]
    return call | ({"stopping_criteria": criteria} if criteria else {})


def on(device: str, call: dict) -> dict:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def random_state(device: str) -> torch.Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state(device)


def check(seed: int, device: str = "cpu") -> None:
    kind, call, drafts = random_call(seed)
    if device != "cpu":  # torchao's int8 was not tried elsewhere
        kind, call = kind.partition("-")[0], on(device, call)
    target, draft = pair(kind) if device == "cpu" else [copy.deepcopy(model).to(device) for model in pair(kind)]
    if drafts.get("draft_model") == "draft":
        drafts["draft_model"] = draft
    set_seed(seed)
    expected, state = target.generate(**copied(call)), random_state(device)
    set_seed(seed)
    found = hs.generate(target, **copied(call), **drafts)
    assert found.tolist() == expected.tolist(), f"call {seed}: {kind}, {call}, {drafts}"
    assert torch.equal(random_state(device), state), f"call {seed} drew otherwise"


def check_bits(seed: int, device: str = "cpu") -> None:
    """Half precision: a draft, and none, in passes of one shape."""
    kind, call, drafts = random_call(seed)
    dtype, kind = random.Random(seed).choice([torch.bfloat16, torch.float16]), kind.partition("-")[0]
    if not is_recurrent(pair(kind)[0]) and kind not in IMAGES:  # refused, see tests/test_bitwise.py
        models = [copy.deepcopy(model).to(device, dtype) for model in pair(kind)]
        compare_bits(seed, models, on(device, call), drafts)


def check_bits_by_kernels(seed: int) -> None:
    """The same in passes of any shape, on models whose linear layers and attention run by our kernels."""
    kind, call, drafts = random_call(seed)
    if kind in IMAGES:
        return
    chance = random.Random(seed)
    dtype, kind = chance.choice(native.DTYPES), chance.choice(["llama", "gemma3_text", "qwen2", "qwen3"])
    target = tiny.build(kind, seed=seed, head_dim=16)
    models = [model.to(dtype) for model in (target, tiny.noisy_copy(target, 0.1))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linears, "LEAST_BYTES", 0)
        if native.has_kernel():
            patch.setattr("hf_speculative.call.parts.FixedShape", lambda *args: pytest.fail("passes of one shape"))
        for model in models:
            linears.use_kernel(model)
        compare_bits(seed, models, call, drafts)


def compare_bits(seed: int, models: list, call: dict, drafts: dict) -> None:
    target, draft = models
    call.pop("prefill_chunk_size", None)
    call |= {"reproducible": "bitwise", "return_dict_in_generate": True, "output_scores": True}
    drafts |= {"draft_model": draft} if drafts.get("draft_model") == "draft" else {}
    found = []
    for more in (drafts, {"draft_model": None}):
        set_seed(seed)
        output = hs.generate(target, **copied(call) | {name: more[name] for name in more if name != "reproducible"})
        found.append([output.sequences, *output.scores, random_state(str(target.device))])
    are_same = len(found[0]) == len(found[1]) and all(map(torch.equal, *found))
    assert are_same, f"call {seed}: {type(target)}, {call}, {drafts}"
