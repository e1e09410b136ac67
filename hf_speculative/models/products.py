"""Products of a few rows with packed weights on a CPU.

Two kernels, each with a weight's numbers in an order of its own:

* `products.cpp`, built for this processor at the first use, where there is a C++ compiler: blocks `(blocks, in, 16)`. With all
  of SmolLM2's weights, on two cores with AVX2, it takes 1.1 times as long as reading them at 1 to 5 columns, 1.5 at 9.
* oneDNN's, `(out, in)` to torch: 1.4 to 1.8 times, 2.2 at 9. Taken for bfloat16 where the processor multiplies in it, and where
  ours cannot be built.

Plain float32 products are MKL's: 2 to 4.6 times (docs/optimize.md).
"""

import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor
from torch.nn import functional

from ..hf_compat import OWNED_ONCE, has_onednn_bf16
from .folder import folder, processor

#: outputs of a block of our kernel
BLOCK = 16
#: columns of a pass for which oneDNN orders weights, the fastest order over all widths (docs/optimize.md)
COLUMNS = 16
SOURCE = Path(__file__).with_suffix(".cpp")
#: the first torch whose stable C++ interface the kernel compiles against
OLDEST_TORCH = (2, 10)
FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
logger = logging.getLogger(__name__)
_lock = threading.Lock()


def dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes of weights that can be packed on this machine."""
    if OWNED_ONCE is None or platform.machine().lower() not in ("x86_64", "amd64"):
        return ()
    if has_kernel() or (_has_onednn() and has_onednn_bf16()):
        return (torch.float32, torch.bfloat16)
    return (torch.float32,) if _has_onednn() else ()


def packed(weight: Tensor) -> Tensor:
    """The numbers of `weight (out, in)` in the order of the faster kernel."""
    is_ours = has_kernel() and not (weight.dtype == torch.bfloat16 and has_onednn_bf16())
    if not is_ours:
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), COLUMNS)
    whole = functional.pad(weight, (0, 0, 0, -len(weight) % BLOCK))
    return whole.view(-1, BLOCK, weight.shape[1]).transpose(1, 2).contiguous()


def unpacked(packed: Tensor, num_outputs: int) -> Tensor:
    """The plain weight `(out, in)`, bit for bit."""
    if packed.ndim == 2:
        return packed.to_dense()
    rows = packed.transpose(1, 2).flatten(0, 1)[:num_outputs]
    return rows.clone(memory_format=torch.contiguous_format)


def linear(input: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    """`functional.linear` with a packed weight of `num_outputs` rows."""
    if packed.ndim == 2:
        return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")
    return torch.ops.hf_speculative.packed_linear(input, packed, bias, num_outputs)


def _has_onednn() -> bool:
    needs = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in needs)


def has_kernel() -> bool:
    """Whether `products.cpp` is loaded. It is built first, unless an earlier process did so, or could not."""
    with _lock:
        return _is_loaded()


@functools.cache
def _is_loaded() -> bool:
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return sys.platform == "linux" and release >= OLDEST_TORCH and {"avx2", "fma"} <= {*processor().split()} and _load()


def kernel_path() -> Path:
    """The library, named by all that it depends on."""
    text = "\n".join([SOURCE.read_text(), torch.__version__, *FLAGS, processor()])
    return folder() / f"products-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"


def _load() -> bool:
    path = kernel_path()
    note = path.with_suffix(".txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists() and not note.exists():
                logger.warning("Building the kernel of packed weights for this processor, once: 3 s.")
                _build(path)
        if note.exists():
            return False
    except OSError as error:  # no compiler, or nothing can be written
        logger.info(f"oneDNN's packed products are used ({error})")
        return False
    except subprocess.CalledProcessError as error:
        return _failed(note, error.stderr)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:  # damaged, or in a folder from which nothing may run
        return _failed(note, str(error))
    torch.library.register_fake("hf_speculative::packed_linear")(_shape)
    return True


def _failed(note: Path, reason: str) -> bool:
    logger.warning(
        f"The kernel of packed weights is not used, but oneDNN's. Delete {note}, which says why, to try again."
    )
    note.with_suffix(".so").unlink(missing_ok=True)
    note.write_text(reason)
    return False


def _build(path: Path) -> None:
    """Compile `products.cpp` to `path`."""
    root = Path(torch.__file__).parent
    search = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}", f"-L{root / 'lib'}"]
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        made = Path(place) / path.name
        command = [os.environ.get("CXX", "g++"), *FLAGS, *search, str(SOURCE), "-o", str(made), "-ltorch_cpu"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(path)


def _shape(input: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    return input.new_empty(*input.shape[:-1], num_outputs)
