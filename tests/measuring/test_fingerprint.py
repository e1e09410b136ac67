"""What tells an evaluation that something was changed since: another for anything that matters."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from transformers import LogitsProcessor

from hf_speculative.measuring.plan import fingerprint
from tests.support import tiny


class Holds(LogitsProcessor):
    def __init__(self, value):
        self.value = value


def test_objects_count_by_what_they_hold():
    assert fingerprint(Holds({"a": torch.tensor([1.0])})) != fingerprint(Holds({"a": torch.tensor([2.0])}))
    assert fingerprint(Holds(n for n in "a")) == fingerprint(Holds(n for n in "b")) != fingerprint(n for n in "a")


@pytest.mark.release
def test_it_is_the_same_in_every_process():
    """A results file is continued by it; sets are in another order, and functions at another address."""
    values = "{'x', 'y', 'z'}, (lambda n: lambda: n)(2), Holds(1).__call__, torch.ones(2)"
    code = f"from {__name__} import *; print(*[fingerprint(Holds(value)) for value in ({values})])"
    environments = [os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()} for seed in "12"]
    one, other = (subprocess.check_output([sys.executable, "-c", code], env=env) for env in environments)
    assert one == other and len({*one.split()}) == 4


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
