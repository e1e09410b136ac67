"""Weights in other forms."""

import copy
import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch

#: where `make` installs it: transformers imports it wherever it is installed, and it says much on stderr
TORCHAO = Path(sys.prefix) / "torchao"


def torchao_or_skip():
    """torchao's quantisation, from a folder of its own."""
    if TORCHAO.is_dir() and str(TORCHAO) not in sys.path:
        sys.path.append(str(TORCHAO))
    try:
        with warnings.catch_warnings():  # of its texts, where it is compiled
            warnings.simplefilter("ignore")
            return importlib.import_module("torchao.quantization")
    except ImportError:
        pytest.skip("needs torchao, which `make test` installs")


def quantised(model, torchao):
    """int8 weights alone."""
    model = copy.deepcopy(model)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    assert type(model.get_output_embeddings().weight) is not torch.nn.Parameter
    return model
