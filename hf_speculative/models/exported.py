"""Export a pass for all batch sizes, widths and lengths, and compile it to a file by torch's AOTInductor.

One file serves every model of a config, since it holds no weights: it is bound to a model's own, without copies, so that they
may change in place. It is compiled for sizes of 2 or more, and used for size 1 as well, which torch would compile separately.
So each file is tested at 1 row, 1 column and several before it is kept. Linear layers that multiply by our kernel do so in the
file as well.
"""

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..hf_compat import without_modes
from ..hf_compat.compiled import CompiledFunction, CompiledPackage
from . import linears
from .ragged_cache import Layout, in_rows
from .traced import COLUMNS, MAX_COLUMNS, TracedPass, sizes_that_vary
from .traced_cache import by_layer

#: rows, columns, slots and tree nodes of the passes on which files are tested
TRIED = ((1, 1, 7, 1), (1, 5, 40, 1), (3, 1, 9, 1), (2, 4, 33, 3), (2, 40, 0, 1), (1, 9, 21, 8))
#: by rounding alone, eager passes of SmolLM2-135M with our kernel and without lie 4e-4 apart on random caches;
#: the largest errors: in float32, in standard deviations of all numbers; in half precision, of a number and of a vector's
#: root mean square, in the vector's own root mean square, or the median one if that is larger. A number's own size is added.
LARGEST, LARGEST_IN_HALF, MEAN_IN_HALF = 5e-3, 0.5, 0.1
#: the most tokens of these passes that may differ, since logits may be equal after rounding
MOST_OTHERS = 5
#: a compiled pass, or a piece of one
Runs = Callable[[list[Tensor]], list[Tensor]]


class Differs(RuntimeError):
    """The compiled pass returns other logits, or writes other keys, than the model."""


def export(module):
    """Export a `TracedPass` or a piece of one, for all sizes from 2, as a `torch.export.ExportedProgram`."""
    from torch.export import Dim  # the compiler: heavy, and not needed to run what it made
    from torch.fx.experimental import _config as symbolic_shapes

    def dim(times: int, pair: tuple[int, int]):
        most = MAX_COLUMNS if pair == COLUMNS else None
        return times * Dim("size_{}_{}".format(*pair), min=2, max=most)

    samples = module.samples
    sizes = tuple({axis: dim(*size) for axis, size in varying.items()} for varying in sizes_that_vary(*samples))
    # Symbolic sizes are not specialised to 0 and 1.
    linears.exports_ours = True
    try:
        with torch.no_grad(), symbolic_shapes.patch(backed_size_oblivious=True):
            return torch.export.export(module, samples[0], dynamic_shapes=(sizes,), strict=False)
    finally:
        linears.exports_ours = False


def compile_to(path: Path, module) -> None:
    """Export and compile a `TracedPass` or a piece of one, and write it to `path`.

    Raises:
        Exception: torch cannot export or compile it.
    """
    from torch._inductor import aoti_compile_and_package
    from torch.fx.experimental import proxy_tensor

    with torch.no_grad(), _silent_compiler():
        program = export(module)
        settings = {
            "aot_inductor.package_constants_in_so": False,
            "always_keep_tensor_constants": True,  # weights of up to 8 numbers too, which would be written into the code
            "cpp.dynamic_threads": True,  # one file for any number of threads, not for those of the process that made it
        }
        try:
            aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
        finally:
            # torch keeps the last traced graph until the next trace, and with it the model's weights.
            getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()


@contextmanager
def _silent_compiler() -> Iterator[None]:
    """Silence torch's deprecations, and its warnings of operators that compiled code calls in a slower way."""
    log = logging.getLogger("torch._inductor.ir")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


class Checked:
    """A compiled piece that is compared with its module at each call: in half precision, the rounding errors of thirty layers
    grow too large to tell a pass from a wrong one.

    Args:
        dtype: of the model.
        num_outputs: to compare; `None`: all. Tokens may be others where logits are nearly equal.
    """

    def __init__(self, compiled: Runs, module: nn.Module, dtype: torch.dtype, num_outputs: int | None = None):
        self.compiled, self.module, self.dtype, self.num_outputs = compiled, module, dtype, num_outputs

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        others = [tensor.clone() for tensor in inputs]
        found, expected = self.compiled(inputs), self.module(*others)
        expected = ([expected] if isinstance(expected, Tensor) else list(expected))[: self.num_outputs]
        pairs = zip(expected + others, found[: len(expected)] + inputs, strict=True)
        if not all(_is_close(one, other, self.dtype) for one, other in pairs):
            raise Differs(f"{type(self.module).__name__} is computed otherwise than by the model")
        return found


@torch.no_grad()
def check(compiled: Runs, module: TracedPass, parts: Sequence[nn.Module] = ()) -> None:
    """Compare a compiled pass with the model, and each of its pieces with what it was made of, one of `parts`.

    Raises:
        Differs: its outputs differ from the model's.
    """
    num_others, of_pieces, dtype = 0, isinstance(compiled, PassOfPieces), module.model.dtype
    if isinstance(compiled, PassOfPieces):
        *pieces, after = (Checked(*piece, dtype) for piece in zip(compiled.pieces, parts, strict=True))
        after.num_outputs = 1  # the logits
        compiled = PassOfPieces([*pieces, after], module.num_places, compiled.recorded, compiled.layouts)
    for seed, (num_rows, num_columns, seen, num_nodes) in enumerate(TRIED):
        inputs, others = (module.sample(num_rows, num_columns, seen, num_nodes, seed=seed) for _ in range(2))
        expected, found = module(*inputs), compiled(list(others))
        num_others += int((found[1] != module.likeliest(found[0])).sum())
        numbers = (expected[0], *expected[2:], *module.written(inputs)), (found[0], *found[2:], *module.written(others))
        pairs = zip(*numbers, strict=True)
        if (not of_pieces or dtype == torch.float32) and not all(_is_close(*pair, dtype) for pair in pairs):
            raise Differs(f"{num_rows} rows of {num_columns} columns are computed otherwise than by the model")
    if num_others > MOST_OTHERS:
        raise Differs(f"{num_others} tokens are not those of the largest logits")


def _is_close(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers of a model of this dtype are equal but for rounding; some of its states are kept in float32."""
    if bool((one == other).all()):  # of a single query, one mask serves all heads
        return True
    if not one.is_floating_point():
        return False
    error = (one.float() - other.float()).abs()
    if dtype == torch.float32:
        return bool(error.max() <= LARGEST * one.std())
    # A few vectors of a model's states, and numbers in them, are hundreds of times the others.
    squares = one.float().square().mean(-1, keepdim=True)
    sizes = squares.clamp(min=squares.median()).sqrt()
    is_near = (error <= LARGEST_IN_HALF * (sizes + one.float().abs())).all()
    return bool(is_near) and bool((error.square().mean(-1, keepdim=True).sqrt() <= MEAN_IN_HALF * sizes).all())


class BoundPass:
    """A compiled pass on a model's weights, or a piece of one.

    Attributes:
        layouts: of the layers, if it is a whole pass.

    Args:
        compiled: the file's function.
        weights: by the names that it has for them.
    """

    layouts: Sequence[Layout] = ()

    def __init__(self, compiled: CompiledFunction, weights: Mapping[str, Tensor]):
        self.compiled = compiled
        with torch.inference_mode(False):
            # torch keeps the very tensors it is given here for good: it is given some of our own, which are emptied in the end.
            aliases = {name: weight.detach() for name, weight in weights.items()}
            compiled.load_constants(aliases)
        self.aliases = list(aliases.values())
        weakref.finalize(self, _empty, self.aliases).atexit = False

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        return self.compiled.run(inputs)


class PassOfPieces:
    """Run the pieces of a pass in order, with the interface of a `BoundPass`.

    Args:
        pieces: each a `BoundPass`, see `pieces_of`.
        num_places: the tensors that the first one takes.
        recorded: the layers whose states a pass returns.
        layouts: of the layers.
    """

    def __init__(self, pieces: list[Any], num_places: int, recorded: tuple[int, ...], layouts: Sequence[Layout]):
        self.pieces, self.num_places, self.recorded, self.layouts = pieces, num_places, recorded, layouts
        self.before, *self.layers, self.after = pieces
        self.kept_at: dict[int, list[int]] = {}
        for place, layer in enumerate(recorded):
            self.kept_at.setdefault(layer % (len(self.layers) + 1), []).append(place)

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        states, places, *shared = self.before(inputs[: self.num_places])
        slots, columns, record = inputs[4], *inputs[self.num_places : self.num_places + 2]
        for index, (layer, cached) in enumerate(zip(self.layers, by_layer(self.layouts, inputs), strict=True)):
            for place in self.kept_at.get(index, ()):
                size = states.shape[2]
                rows, slots_of_rows = in_rows(places, places.device)
                record[rows, slots_of_rows, place * size : (place + 1) * size] = states
            (states,) = layer([states, places, slots, *shared, *cached])
        return self.after([states, columns])


def load(package: CompiledPackage, module: nn.Module) -> BoundPass:
    """Load the compiled `TracedPass`, or a piece of one, on the weights of `module`.

    Raises:
        Differs: it was compiled for other weights.
    """
    function = package.function()
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    names = function.constants.values()
    if missing := [name for name in names if name not in own]:
        raise Differs(f"it needs {', '.join(missing)}, which the model does not have")
    return BoundPass(function, {name: own[name] for name in names})


@torch.inference_mode(False)
def _empty(aliases: list[Tensor]) -> None:
    # Garbage may be collected while a model is loaded on "meta", or traced on fake tensors.
    with without_modes():
        for alias in aliases:
            alias.data = torch.zeros(0, device="cpu")
