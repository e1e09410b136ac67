"""Calls in which a round reads from the device once, on simulated devices and on real ones."""

import copy

import torch

from hf_speculative.call import decoding
from hf_speculative.call.configuration import as_keywords
from tests.support import fake_cuda, tiny
from tests.support.drafters import beams

SETTINGS = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 8}
THREE = {"num_draft_tokens": 3}
SAMPLED = THREE | {"do_sample": True, "temperature": 0.8, "top_p": 0.9}
CAPTURED = SETTINGS | THREE | as_keywords({"optimize": True})
TARGET = tiny.llama(layers=1)
DRAFT = tiny.noisy_copy(TARGET)
DEEPER = tiny.llama()


def on(place: str, *models):
    return [copy.deepcopy(model).to(place) for model in models]


def prompts(place: str, num_rows: int = 2) -> dict[str, torch.Tensor]:
    return {name: value.to(place) for name, value in tiny.prompts(num_rows, width=8).items()}


def ids(result) -> list[list[int]]:
    return getattr(result, "sequences", result).tolist()


def waits_by_round(monkeypatch, devices, run) -> list[list[fake_cuda.Wait]]:
    """What the host waited for in each round of the calls that `run` makes."""
    found, speculate = [], decoding.speculate

    def watched(*args, **kwargs):
        start = len(devices.waits)
        for round in speculate(*args, **kwargs):
            found.append(devices.waits[start:])
            yield round
            start = len(devices.waits)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "speculate", watched)
        run()
    assert len(found) > 2
    return found


PROCESSORS = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 4, "eos_token_id": [5, 9]}
#: options of calls; whose options name no source have a draft model
ONE_READ = {
    "greedy": THREE,
    "length chosen": {},
    "block rule": SAMPLED,
    "token rule": SAMPLED | as_keywords({"rule": "token"}),
    "sampled rule": SAMPLED | as_keywords({"rule": "sampled"}),
    "reproducible": SAMPLED | {"reproducible": True},
    "bitwise": THREE | {"reproducible": "bitwise"},
    "bitwise, text": THREE | {"reproducible": "bitwise", "draft_model": "auto"},
    "bitwise, graphs, sampled": SAMPLED | {"reproducible": "bitwise"} | as_keywords({"optimize": True}),
    "copies of a prompt": SAMPLED | {"num_return_sequences": 2},
    "processors": THREE | PROCESSORS,
    "scores": THREE | {"return_dict_in_generate": True, "output_scores": True},
    "guidance": THREE | {"guidance_scale": 1.5},
    "early exit": {"assistant_early_exit": 1},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "text": {"draft_model": "suffix"},
    "recycling, trees": {"draft_model": "recycling"},
    "auto, trees": {"draft_model": "auto"},
    "beams, trees": {"draft_model": beams, "num_draft_tokens": 5},
    "window": THREE | {"max_new_tokens": 24} | as_keywords({"draft_window": 16}),
    "graphs": THREE | as_keywords({"optimize": True}),
    "graphs, window": THREE | {"max_new_tokens": 24} | as_keywords({"optimize": True, "draft_window": 16}),
    "graphs, sampled": SAMPLED | as_keywords({"optimize": True}),
}


#: where a capture is compared with its pass, once a kind
CAPTURING = "models/replays.py"
