"""A pass without Python: exported once for all batches, widths and lengths, and compiled to a file by torch's AOTInductor.

One file serves every model of a config, for it holds no weights. It is compiled for sizes of 2 and more, and run on 1 as well,
which torch would compile apart: that this is right is tried out before a file is kept, at 1 row, 1 column and at several.
Packed layers are compiled as calls of oneDNN on their packed weights.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from .bound import BoundPass, Moved
from .masks import AttentionLayers
from .packed_layers import packed_of, traced
from .packed_parameters import WEIGHT, named_parameters_of
from .places import fed_places
from .shallow import exchanged
from .states import asked_for, joined

#: columns a pass may have; longer prompts run eagerly: of so long a pass, Python is a small part
MAX_COLUMNS = 512
#: rows, columns and slots of the passes that a file is held to
TRIED = ((1, 1, 7), (1, 5, 40), (3, 1, 9), (2, 4, 33), (2, 40, 0))
#: what a number may be off by, in standard deviations, in float32 and in half precision; and there a vector, in its root mean
#: square: of the many logits of a deep model a few differ by more than most
LARGEST, LARGEST_IN_HALF, MEAN_IN_HALF = 1e-3, 1.0, 0.1


class TracedLayer(CacheLayerMixin):
    """One layer's keys and values `(batch, heads, capacity, dim)`, in a pass that is traced.

    Written by `index_put_`, which the compiler does in place; a `scatter_` would copy the whole cache.
    """

    is_sliding = False

    def __init__(self, cache: TracedCache, keys: Tensor, values: Tensor):
        super().__init__()
        self.cache, self.keys, self.values, self.is_initialized = cache, keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        cache = self.cache
        for part, states in ((self.keys, key_states), (self.values, value_states)):
            part.index_put_((cache.rows, cache.heads, cache.slots[:, None]), states)
        return self.keys[:, :, : cache.end], self.values[:, :, : cache.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.end, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class TracedCache(Cache):
    """What `ragged_pass` and the masks read of a `RaggedCache`, over keys and values that come in from outside."""

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], end: int):
        self.end = end
        self.slots: Tensor = torch.empty(0)
        batch, heads = keys[0].shape[:2]
        device = keys[0].device
        self.rows = torch.arange(batch, device=device)[:, None, None]
        self.heads = torch.arange(heads, device=device)[None, :, None]
        super().__init__(layers=[TracedLayer(self, *parts) for parts in zip(keys, values, strict=True)])

    def first(self, window: int | None) -> int:
        """Windows look at all slots: what a mask hides changes no shape."""
        return 0


class Pass(nn.Module):
    """One pass of `model` as a function of tensors: see `forward`.

    Args:
        recorded: which of transformers' `hidden_states` it gives as well.
    """

    def __init__(self, model: PreTrainedModel, recorded: tuple[int, ...] = ()):
        super().__init__()
        self.model, self.recorded = model, recorded
        self.packed = packed_of(model)
        self.layers = AttentionLayers(model)
        self.takes_columns = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(
        self,
        input_ids: Tensor,
        first: Tensor,
        seen: Tensor,
        bounds: Tensor,
        slots: Tensor,
        columns: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """
        Args:
            columns: `(m,)`, those whose logits are computed; the others as those of `ragged_pass`, and the cache's.

        Returns:
            Logits `(batch, m, vocab)`, and of all columns, if any are `recorded`, the states `(batch, width, states * hidden)`.
        """
        cache = TracedCache(keys, values, slots.shape[0])
        positions, cache.slots = fed_places(first, seen, bounds, input_ids.shape[1])
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=self.layers.masks(positions, cache, self.model.dtype),  # type: ignore[arg-type]
            position_ids=torch.minimum(positions, bounds[1]),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **({"logits_to_keep": columns} if self.takes_columns else {}),
            **({"output_hidden_states": asked_for(self.recorded)} if self.recorded else {}),
        )
        logits = outputs.logits if self.takes_columns else outputs.logits[:, columns]
        return (logits, joined(outputs, self.recorded, logits.device)) if self.recorded else (logits,)

    def sample(self, num_rows: int, num_columns: int, seen: int, capacity: int = 0, seed: int = 0) -> tuple:
        """Arguments of a pass over random ids and caches; every other row feeds a column less than the others."""
        config, generator = self.layers.config, torch.Generator().manual_seed(seed)
        vocab_size = self.model.get_input_embeddings().num_embeddings
        heads, dim = self.layers.shape_of_keys()
        end = seen + num_columns
        capacity = max(capacity, end + 3)
        shape = (num_rows, heads, capacity, dim)
        caches = [
            [torch.randn(shape, generator=generator).to(self.model.dtype) for _ in range(config.num_hidden_layers)]
            for _ in range(2)
        ]
        known = torch.full((num_rows,), seen)
        if num_columns > 1:
            known = known + torch.arange(num_rows) % 2
        return (
            torch.randint(vocab_size, (num_rows, num_columns), generator=generator),
            torch.full((num_rows,), seen),
            known,
            torch.tensor([capacity - 1, end]),
            torch.arange(end),
            torch.arange(num_columns),
            *caches,
        )

    def for_compiler(self) -> Pass:
        """The same, with packed layers as oneDNN's product of their input and a parameter."""
        model = self.model
        return Pass(exchanged(model, {name: traced(model.get_submodule(name)) for name in self.packed}), self.recorded)


class Differs(RuntimeError):
    """The compiled pass gives other logits, or writes other keys, than the model."""


def export(module: Pass):
    """`module`, on plain weights or `for_compiler`, for any sizes from 2 on, as a `torch.export.ExportedProgram`."""
    from torch.export import Dim  # the compiler: heavy, and not needed to run what it made
    from torch.fx.experimental import _config as symbolic_shapes

    batch, width, end = Dim("batch", min=2), Dim("width", min=2, max=MAX_COLUMNS), Dim("end", min=2)
    capacity, num_kept = Dim("capacity", min=2), Dim("num_kept", min=2)
    inputs = module.sample(3, 5, 300)
    of_caches = [{0: batch, 2: capacity}] * len(inputs[-1])
    of_rows = {0: batch}
    shapes = ({0: batch, 1: width}, of_rows, of_rows, None, {0: end}, {0: num_kept}, of_caches, of_caches)
    # Sizes that are symbols are taken as what they stand for in general, not compared with 0 and 1.
    with torch.no_grad(), symbolic_shapes.patch(backed_size_oblivious=True):
        return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


def compile_to(
    path: Path, module: Pass, say: Callable[[str], None] = lambda step: None, notes: Mapping[str, str] = {}
) -> None:
    """Exports and compiles `module` and writes it to `path`, if it does what the model does.

    Args:
        say: is told what is done.
        notes: kept in the file beside the packed layers, for `notes_of`.

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
        notes = {**notes, "packed": json.dumps(sorted(module.packed))}
        settings = {
            "aot_inductor.package_constants_in_so": False,
            "aot_inductor.metadata": notes,
            "cpp.dynamic_threads": True,  # one file for any number of threads, not for those of the process that made it
        }
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
        say("comparing with the model")
        check(load(path, module), module)


def check(compiled: Callable[[list[Tensor]], list[Tensor] | None], module: Pass) -> None:
    for seed, (num_rows, num_columns, seen) in enumerate(TRIED):
        inputs, others = (module.sample(num_rows, num_columns, seen, seed=seed) for _ in range(2))
        expected, found = module(*inputs), compiled(flat(*others))
        if found is None:
            raise Moved("somebody has asked for packed weights")
        pairs = list(zip(expected, found, strict=True))
        for written, same in zip(inputs[-2:], others[-2:], strict=True):  # but the spare slot: filler is written there
            pairs += [(one[:, :, :-1], other[:, :, :-1]) for one, other in zip(written, same, strict=True)]
        for one, other in pairs:
            if not _is_close(one, other):
                raise Differs(f"{num_rows} rows of {num_columns} columns are computed otherwise than by the model")


def _is_close(one: Tensor, other: Tensor) -> bool:
    error = (one.float() - other.float()).abs() / one.float().std()
    if one.dtype == torch.float32:
        return bool(error.max() <= LARGEST)
    return bool(error.max() <= LARGEST_IN_HALF) and bool(error.square().mean(-1).max() <= MEAN_IN_HALF**2)


def flat(*inputs) -> list[Tensor]:
    """The arguments of `Pass.forward` as a compiled pass takes them."""
    *tensors, keys, values = inputs
    return [*tensors, *keys, *values]


def open_package(path: Path):
    """torch's loader of a compiled file: `get_constant_fqns`, `get_metadata`, `load_constants` and `run`."""
    return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)


def notes_of(path: Path) -> dict[str, str]:
    """What the file says of itself, without loading it."""
    return torch._C._aoti.AOTIModelPackageLoader.load_metadata_from_package(str(path), "model")


def load(path: Path, module: Pass) -> BoundPass:
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
    if module.packed.keys() != set(json.loads(compiled.get_metadata()["packed"])):
        raise Differs("other layers of the model are packed than those that it was compiled for")
    packed = {f"model.{name}.{WEIGHT}": parameters for name, parameters in module.packed.items()}
    plain = {name: own[name].detach() for name in names if name not in packed}
    return BoundPass(compiled, plain, packed)
