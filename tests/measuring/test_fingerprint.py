"""What tells an evaluation that something was changed since: the same in every process, another for anything that matters."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessor

from hf_speculative.measuring.fingerprint import fingerprint
from tests.support import tiny


class Holds(LogitsProcessor):
    def __init__(self, value):
        self.value = value


def closed_over(value):
    return lambda scores: scores * value


#: `datasets` looks into objects; of these it is seen that it does
PAIRS = {
    "float": (1.01, 5.0),
    "nested": ({"a": [{"b": (1, 2)}]}, {"a": [{"b": (1, 3)}]}),
    "set": ({"x", "y", "z"}, {"x", "y", "w"}),
    "tensor": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
    "closure": (closed_over(2), closed_over(3)),
    "method": (Holds(1).__call__, Holds(2).__call__),
    "generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_an_object_holds(name):
    one, other = PAIRS[name]
    assert fingerprint(Holds(one)) != fingerprint(Holds(other))


def test_what_cannot_be_pickled_is_its_type():
    assert fingerprint(Holds(n for n in "a")) == fingerprint(Holds(n for n in "b")) != fingerprint(n for n in "a")


@pytest.mark.slow
def test_it_is_the_same_in_every_process():
    """Whatever the addresses and the order of sets; `object()` and locks have an address in their repr."""
    code = (
        "from tests.measuring import test_fingerprint as t;"
        "print(*(t.fingerprint(t.Holds(one)) for pair in t.PAIRS.values() for one in pair))"
    )
    path = str(Path(__file__).parents[2])
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    here = " ".join(fingerprint(Holds(one)) for pair in PAIRS.values() for one in pair)
    assert found == {here + "\n"}


def test_weights(target):
    known = fingerprint(target)
    assert fingerprint(copy.deepcopy(target)) == known == fingerprint(tiny.llama())
    assert fingerprint(copy.deepcopy(target).bfloat16()) != known
    for name in dict(target.named_parameters()):
        other = copy.deepcopy(target)
        with torch.no_grad():
            other.get_parameter(name).mul_(1.0078125)
        assert fingerprint(other) != known, name


def test_weights_count_wherever_they_are_stored(target):
    """Transposed in memory, in a buffer, or in a tensor made of others; what is made from the config is left out."""
    known, other = fingerprint(target), copy.deepcopy(target)
    for weight in other.parameters():
        if weight.ndim == 2:
            weight.data = weight.data.T.contiguous().T
    assert fingerprint(other) == known
    other.model.rotary_emb.inv_freq *= 1.0001
    assert fingerprint(other) == known
    other.register_buffer("scales", torch.ones(3))
    scaled = fingerprint(other)
    other.scales += 1
    assert len({known, scaled, fingerprint(other)}) == 3
