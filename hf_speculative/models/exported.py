"""A pass without Python: exported once for all batches, widths and lengths, and compiled to a file by torch's AOTInductor.

One file serves every model of a config, for it holds no weights. It is compiled for sizes of 2 and more, and run on 1 as well,
which torch would compile apart: that this is right is tried out before a file is kept, at 1 row, 1 column and at several.
Packed layers are compiled as products of their packed weights, in the order in which these lie.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..hf_compat import load_compiled_package
from .bound import BoundPass, Moved
from .packed_layers import layout_of
from .packed_parameters import WEIGHT, named_parameters_of
from .traced import TracedPass

#: rows, columns and slots of the passes that a file is held to
TRIED = ((1, 1, 7), (1, 5, 40), (3, 1, 9), (2, 4, 33), (2, 40, 0))
#: what a number may be off by, in standard deviations, in float32 and in half precision; and there a vector, in its root mean
#: square: of the many logits of a deep model a few differ by more than most
LARGEST, LARGEST_IN_HALF, MEAN_IN_HALF = 1e-3, 1.0, 0.1
#: of all of these passes' tokens: where two logits are equal once they are rounded, either may be chosen
MOST_OTHERS = 5


class Differs(RuntimeError):
    """The compiled pass gives other logits, or writes other keys, than the model."""


def export(module: TracedPass):
    """`module`, on plain weights or `for_compiler`, for any sizes from 2 on, as a `torch.export.ExportedProgram`."""
    from torch.fx.experimental import _config as symbolic_shapes

    # Sizes that are symbols are taken as what they stand for in general, not compared with 0 and 1.
    with torch.no_grad(), symbolic_shapes.patch(backed_size_oblivious=True):
        return torch.export.export(module, module.sample(3, 5, 300), dynamic_shapes=module.shapes(), strict=False)


def compile_to(path: Path, module: TracedPass, say: Callable[[str], None] = lambda step: None) -> None:
    """Exports and compiles `module` and writes it to `path`, if it does what the model does.

    Args:
        say: is told what is done.

    Raises:
        Differs: it does not.
        Moved: somebody has asked for a packed weight meanwhile.
        Exception: whatever torch raises where it cannot export or compile the model.
    """
    from torch._inductor import aoti_compile_and_package

    say("exporting")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch deprecates of its own is not for our users to mend
        program = export(module.for_compiler())
        say("compiling")
        settings = {
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.metadata": {"packed": json.dumps(layout_of(module.packed))},
            "cpp.dynamic_threads": True,  # one file for any number of threads, not for those of the process that made it
        }
        try:
            aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
        finally:
            _forget_tracing()
        say("comparing with the model")
        check(load(path, module), module)


def _forget_tracing() -> None:
    """torch keeps the nodes of the last graph that it traced, and thus the model's weights, until it traces another."""
    from torch.fx.experimental import proxy_tensor

    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()


def check(compiled: Callable[[list[Tensor]], list[Tensor] | None], module: TracedPass) -> None:
    num_others = 0
    for seed, (num_rows, num_columns, seen) in enumerate(TRIED):
        inputs, others = (module.sample(num_rows, num_columns, seen, seed=seed) for _ in range(2))
        expected, found = module(*inputs), compiled(flat(*others))
        if found is None:
            raise Moved("somebody has asked for packed weights")
        num_others += int((found[1] != module.likeliest(found[0])).sum())
        numbers = (expected[0], *expected[2:], *module.written(inputs)), (found[0], *found[2:], *module.written(others))
        for one, other in zip(*numbers, strict=True):
            if not _is_close(one, other):
                raise Differs(f"{num_rows} rows of {num_columns} columns are computed otherwise than by the model")
    if num_others > MOST_OTHERS:
        raise Differs(f"{num_others} tokens are not those of the largest logits")


def _is_close(one: Tensor, other: Tensor) -> bool:
    error = (one.float() - other.float()).abs() / one.float().std()
    if one.dtype == torch.float32:
        return bool(error.max() <= LARGEST)
    return bool(error.max() <= LARGEST_IN_HALF) and bool(error.square().mean(-1).max() <= MEAN_IN_HALF**2)


def flat(*inputs) -> list[Tensor]:
    """The arguments of a pass's `forward` as a compiled pass takes them."""
    *tensors, given, keys, values = inputs
    return [*tensors, *given, *keys, *values]


def open_package(path: Path):
    """torch's loader of a compiled file: `get_constant_fqns`, `get_metadata`, `load_constants` and `run`."""
    return load_compiled_package(path)


def load(path: Path, module: TracedPass) -> BoundPass:
    """The compiled pass, on the very weights of `module`.

    Raises:
        Differs: it was compiled for other weights.
        Moved: somebody has asked for a packed weight meanwhile.
    """
    compiled = open_package(path)
    own = dict(named_parameters_of(module, remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    names = compiled.get_constant_fqns()
    if missing := [name for name in names if name not in own]:
        raise Differs(f"it needs {', '.join(missing)}, which the model does not have")
    if layout_of(module.packed) != json.loads(compiled.get_metadata()["packed"]):
        raise Differs("other layers of the model are packed than those that it was compiled for")
    packed = {f"model.{name}.{WEIGHT}": parameters for name, parameters in module.packed.items()}
    packed = {name: packed[name] for name in names if name in packed}  # a head's pass does not read all of them
    plain = {name: own[name].detach() for name in names if name not in packed}
    return BoundPass(compiled, plain, packed)
