"""Linear layers and attention of a few rows on a CPU, by kernels of our own: `native.cpp`, built for this processor once.

A pass over a few tokens takes about as long as reading the weights. With all of SmolLM2's, on two cores with AVX2, a kernel
takes as long for one row, 1.2 times for five and 1.6 for nine; torch's own products 2 to 4.6 times (docs/optimize.md).
"""

import functools
import hashlib
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .described import folder, processor

#: number formats
DTYPES = (torch.float32, torch.bfloat16)
#: rows above which torch computes: faster, and in an order of its own
WIDE = 128
SOURCE = Path(__file__).with_suffix(".cpp")
#: the first torch whose stable C++ interface the kernel compiles against
OLDEST_TORCH = (2, 10)
FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", f"-DWIDE={WIDE}")
logger = logging.getLogger(__name__)
_lock = threading.Lock()


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` of tensors of one of `DTYPES`, the weight contiguous."""
    return torch.ops.hf_speculative.linear(input, weight, bias)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`scaled_dot_product_attention` of tensors of one of `DTYPES`, an additive mask included."""
    return torch.ops.hf_speculative.attention(query, key, value, mask, scale)


def has_kernel() -> bool:
    """Whether the kernels are loaded. They are built first, unless an earlier process did so, or could not."""
    return no_kernel_reason() is None


def no_kernel_reason() -> str | None:
    """Why there are no kernels; `None` if they are loaded."""
    with _lock:
        return _load_once()


@functools.cache
def _load_once() -> str | None:
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if sys.platform != "linux" or not {"avx2", "fma"} <= {*processor().split()}:
        return "our kernels are for Linux on processors with AVX2"
    return _load() if release >= OLDEST_TORCH else "our kernels take torch 2.10"


def kernel_path() -> Path:
    """The library, named by all that it depends on."""
    text = "\n".join([SOURCE.read_text(), torch.__version__, *FLAGS, processor()])
    return folder() / f"native-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"


def _load() -> str | None:
    path = kernel_path()
    note = path.with_suffix(".txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists() and not note.exists():
                logger.warning("Building kernels for this processor, once: 4 s.")
                _build(path)
        if note.exists():
            return f"our kernels could not be built; {note} says why: delete it to try again"
    except OSError as error:  # no compiler, or nothing can be written
        return f"our kernels cannot be built ({error}); they take a C++ compiler, such as g++"
    except subprocess.CalledProcessError as error:
        return _failed(note, error.stderr)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # damaged, or in a folder from which nothing may run
        return _failed(note, str(error))
    torch.library.register_fake("hf_speculative::linear")(_shape)
    torch.library.register_fake("hf_speculative::attention")(_shape_of_attention)
    register_flop_formula(torch.ops.hf_speculative.linear)(_flops)
    register_flop_formula(torch.ops.hf_speculative.attention)(_flops_of_attention)
    return None


def _failed(note: Path, error: str) -> str:
    reason = f"our kernels could not be built; {note} says why: delete it to try again"
    logger.warning(f"Layers compute as plain ones do: {reason}.")
    with suppress(OSError):  # in a folder that cannot be written, it is tried again
        note.with_suffix(".so").unlink(missing_ok=True)
        note.write_text(error)
    return reason


def _build(path: Path) -> None:
    """Compile `native.cpp` to `path`."""
    root = Path(torch.__file__).parent
    search = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}", f"-L{root / 'lib'}"]
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        made = Path(place) / path.name
        command = [os.environ.get("CXX", "g++"), *FLAGS, *search, str(SOURCE), "-o", str(made), "-ltorch_cpu"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(path)


def _shape(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return input.new_empty(*input.shape[:-1], weight.shape[0])


def _flops(input: Sequence[int], weight: Sequence[int], *_, **__) -> int:
    return 2 * math.prod(input) * weight[0]


def _flops_of_attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_, **__) -> int:
    return 2 * math.prod(query[:3]) * key[2] * (query[3] + value[3])


def _shape_of_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])
