"""One pass of a model as a function of tensors, for any number of rows, columns and slots: what is compiled ahead of time."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, CacheLayerMixin, PreTrainedModel

from ..types import Tree
from .masks import AttentionLayers, Nodes, no_nodes, nodes_of
from .packed_layers import traced
from .places import fed_places
from .shallow import exchanged
from .states import asked_for, joined

#: the most columns of a pass; longer prompts run eagerly, where Python is a small part of the time
MAX_COLUMNS = 512
#: rows of the sampled embeddings
NUM_SAMPLED = 100
#: slots behind those in use of a pass that is tried out, and tensors of a `Pass` that say where its columns stand
NUM_SPARE, NUM_PLACES = 3, 8


class TracedLayer(CacheLayerMixin):
    """One layer's keys and values `(batch, heads, capacity, dim)`, in a pass that is traced.

    Written by `index_put_`, which the compiler does in place; a `scatter_` would copy the whole cache.
    """

    is_sliding = False

    def __init__(self, cache: "TracedCache", keys: Tensor, values: Tensor):
        super().__init__()
        self.cache, self.keys, self.values, self.is_initialized = cache, keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        cache = self.cache
        batch, heads = self.keys.shape[:2]
        rows = torch.arange(batch, device=self.keys.device)[:, None, None]
        index = (rows, torch.arange(heads, device=self.keys.device)[None, :, None], cache.slots[:, None])
        for part, states in ((self.keys, key_states), (self.values, value_states)):
            part.index_put_(index, states)
        return self.keys[:, :, : cache.end], self.values[:, :, : cache.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.end, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class TracedCache(Cache):
    """A `RaggedCache` for `ragged_pass` and masks, over keys and values that are inputs of the pass."""

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], end: int):
        self.end = end
        self.slots: Tensor = torch.empty(0)
        super().__init__(layers=[TracedLayer(self, *parts) for parts in zip(keys, values, strict=True)])

    def first(self, window: int | None) -> int:
        """Windows look at all slots: what a mask hides changes no shape."""
        return 0


def dims_of_a_pass() -> dict[str, Any]:
    """The dynamic sizes, from 2, by name, for `torch.export`."""
    from torch.export import Dim  # the compiler: heavy, and not needed to run what it made

    widths = {name: Dim(name, min=2, max=MAX_COLUMNS) for name in ("width", "known", "drafted")}
    return widths | {name: Dim(name, min=2) for name in ("batch", "end", "capacity", "num_kept", "num_nodes")}


class TracedPass(nn.Module):
    """One pass of `model` as a function of tensors. The last three are lists: what else is `given`, keys, values, a layer each.

    Attributes:
        widths: what the number of columns of each tensor that is `fed` is called: those of one name have the same.
    """

    widths: tuple[str, ...]

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model, self.layers = model, AttentionLayers(model)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        """Further tensors of the caller's, the same in each pass."""
        return []

    def shapes_of_given(self, batch, capacity) -> list[dict]:
        """Theirs, as `shapes`; `batch` and `capacity` are `torch.export`'s."""
        return []

    def written(self, inputs: tuple) -> list[Tensor]:
        """Of the arguments of a pass that is over, all that it may have written but what it wrote to the spare slot."""
        keys, values = inputs[-2:]
        return [part[:, :, :-1] for part in (*keys, *values)]

    @abstractmethod
    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What a pass of random tokens reads of them, each `(rows, columns, ...)`, with `num_columns` by all names together."""

    def sample(self, num_rows: int, num_columns: int, seen: int, num_nodes: int = 1, seed: int = 0) -> tuple:
        """Arguments of a pass over random tokens and caches; every other row feeds a column less than the others.

        Args:
            num_nodes: of a random tree in each row, which are the last columns; of fewer than 2, the columns are a chain.
        """
        generator = torch.Generator().manual_seed(seed)
        places = self.places(num_rows, num_columns, seen, num_nodes, generator)
        layers = [
            self.keys_and_values(num_rows, num_columns, seen, generator)
            for _ in range(self.layers.config.num_hidden_layers)
        ]
        given = self.given(num_rows, seen + num_columns + NUM_SPARE, generator)
        return (*places, torch.arange(num_columns), given, *map(list, zip(*layers, strict=True)))

    def keys_and_values(
        self, num_rows: int, num_columns: int, seen: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Random ones of a layer, as `sample` has them."""
        generator = generator or torch.Generator().manual_seed(0)
        heads, dim = self.layers.shape_of_keys()
        shape = (num_rows, heads, seen + num_columns + NUM_SPARE, dim)
        keys, values = (torch.randn(shape, generator=generator).to(self.model.dtype) for _ in range(2))
        return keys, values

    def places(
        self,
        num_rows: int,
        num_columns: int,
        seen: int,
        num_nodes: int = 1,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, ...]:
        """The first of the arguments, up to a tree's."""
        generator = generator or torch.Generator().manual_seed(0)
        end = seen + num_columns
        known = torch.full((num_rows,), seen)
        if num_columns > 1:
            known = known + torch.arange(num_rows) % 2
        if num_nodes > 1:
            parents = [torch.randint(-1, node, (num_rows,), generator=generator) for node in range(num_nodes)]
            nodes = nodes_of(Tree(torch.stack(parents, 1), depth=num_nodes), torch.full((num_rows,), end - num_nodes))
        else:
            nodes = no_nodes(num_rows, end)
        return (
            *self.fed(num_rows, num_columns, generator),
            torch.full((num_rows,), seen),
            known,
            torch.tensor([end + NUM_SPARE - 1, end]),
            torch.arange(end),
            *nodes,
        )

    @property
    def example(self) -> tuple:
        """Arguments to trace it with."""
        return self.sample(3, 5, 300, num_nodes=3)

    def shapes(self) -> tuple:
        """Which sizes of the arguments may be any from 2 on, for `torch.export`."""
        dims = dims_of_a_pass()
        batch, capacity, end, num_kept = (dims[name] for name in ("batch", "capacity", "end", "num_kept"))
        of_fed, of_rows, num_nodes = [{0: batch, 1: dims[name]} for name in self.widths], {0: batch}, dims["num_nodes"]
        of_nodes = (of_rows, {0: batch, 1: num_nodes}, {0: batch, 1: num_nodes, 2: num_nodes})
        of_caches = [{0: batch, 2: capacity}] * self.layers.config.num_hidden_layers
        return (
            *of_fed, of_rows, of_rows, None, {0: end}, *of_nodes, {0: num_kept},
            self.shapes_of_given(batch, capacity), of_caches, of_caches,
        )  # fmt: skip

    def likeliest(self, logits: Tensor) -> Tensor:
        """Where `logits (batch, m, vocab)` are largest, as ids of the target."""
        return logits.argmax(-1)

    @abstractmethod
    def of(self, model: PreTrainedModel) -> "TracedPass":
        """The same of another model."""

    def for_compiler(self) -> "TracedPass":
        """The same, with packed layers as products of their input and a parameter that lies as the packed weight does."""
        return self.of(exchanged(self.model, traced(self.model)))


class Pass(TracedPass):
    """A pass of a language model: see `forward`.

    Args:
        recorded: which of transformers' `hidden_states` it keeps.
    """

    widths = ("width",)

    def __init__(self, model: PreTrainedModel, recorded: tuple[int, ...] = ()):
        super().__init__(model)
        self.recorded = recorded
        self.takes_columns = "logits_to_keep" in inspect.signature(model.forward).parameters

    def of(self, model: PreTrainedModel) -> "Pass":
        return Pass(model, self.recorded)

    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        num_ids = self.model.get_input_embeddings().num_embeddings
        return (torch.randint(num_ids, (num_rows, num_columns), generator=generator),)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        size = len(self.recorded) * self.layers.config.hidden_size
        return [torch.zeros(num_rows, capacity, size, dtype=self.model.dtype)] if self.recorded else []

    def shapes_of_given(self, batch, capacity) -> list[dict]:
        return [{0: batch, 1: capacity}] if self.recorded else []

    def written(self, inputs: tuple) -> list[Tensor]:
        input_ids, slots = inputs[0], inputs[4]
        end = len(slots)
        return super().written(inputs) + [states[:, end - input_ids.shape[1] : end] for states in inputs[-3]]

    def forward(
        self,
        input_ids: Tensor,
        first: Tensor,
        seen: Tensor,
        bounds: Tensor,
        slots: Tensor,
        root: Tensor,
        depths: Tensor,
        ancestors: Tensor,
        columns: Tensor,
        record: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
        prepared: Callable[[Any], Any] = lambda masks: masks,
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            root, depths, ancestors: of a tree, as `Nodes` takes them.
            columns: `(m,)`, those whose logits are computed; the others as those of `ragged_pass`, and the cache's.
            prepared: makes of masks those that the model is given.
            record: if states are `recorded`, one tensor `(batch, capacity, states * hidden)`, for them in their keys' slots.

        Returns:
            Logits `(batch, m, vocab)`, and where they are largest, `(batch, m)`.
        """
        cache = TracedCache(keys, values, slots.shape[0])
        queries, cache.slots = fed_places(first, seen, bounds, input_ids.shape[1])
        nodes = Nodes(root, depths, ancestors)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=prepared(self.layers.masks(queries, cache, self.model.dtype, nodes)),  # type: ignore[arg-type]
            position_ids=torch.minimum(nodes.positions(queries), bounds[1]),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **({"logits_to_keep": columns} if self.takes_columns else {}),
            **({"output_hidden_states": asked_for(self.recorded)} if self.recorded else {}),
        )
        for states in record:
            rows = torch.arange(states.shape[0], device=states.device)[:, None]
            states.index_put_((rows, cache.slots), joined(outputs, self.recorded, states.device))
        logits = outputs.logits if self.takes_columns else outputs.logits[:, columns]
        return logits, self.likeliest(logits)


class HeadPass(TracedPass):
    """A pass of a draft head, from tokens and states to tokens and states; see `forward`."""

    widths = ("known", "known", "drafted", "drafted")

    def of(self, model: PreTrainedModel) -> "HeadPass":
        return HeadPass(model)

    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        num_known = num_columns // 2 if num_rows % 2 else num_columns
        fed: list[Tensor] = []
        for width, size in (
            (num_known, self.model.fc.in_features),
            (num_columns - num_known, self.model.fc.out_features),
        ):
            fed.append(torch.randint(NUM_SAMPLED, (num_rows, width), generator=generator))
            fed.append(torch.randn(num_rows, width, size, generator=generator).to(self.model.dtype))
        return tuple(fed)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        return [torch.randn(NUM_SAMPLED, self.layers.config.hidden_size, generator=generator).to(self.model.dtype)]

    def shapes_of_given(self, batch, capacity) -> list[dict]:
        from torch.export import Dim

        return [{0: Dim("num_ids", min=2)}]

    def forward(
        self,
        tokens: Tensor,
        target_states: Tensor,
        drafted: Tensor,
        own_states: Tensor,
        first: Tensor,
        seen: Tensor,
        bounds: Tensor,
        slots: Tensor,
        root: Tensor,
        depths: Tensor,
        ancestors: Tensor,
        columns: Tensor,
        embeddings: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            tokens, target_states: `(batch, n)` and, as `Eagle3Model.fuse` takes them, `(batch, n, ...)`, of the first columns.
            drafted, own_states: `(batch, width - n)` and `(batch, width - n, hidden)`, of the others.
            embeddings: one tensor `(ids, hidden)`; what is past the last id reads as that. The others as those of `Pass`.

        Returns:
            Of `m` columns logits `(batch, m, vocab)` over its own vocabulary, the likeliest tokens `(batch, m)` as ids of the
            target, and the head's own states `(batch, m, hidden)`.
        """
        cache = TracedCache(keys, values, slots.shape[0])
        (table,) = embeddings
        ids = torch.cat([tokens, drafted], 1).clamp(max=table.shape[0] - 1)
        queries, cache.slots = fed_places(first, seen, bounds, ids.shape[1])
        nodes = Nodes(root, depths, ancestors)
        own = self.model(
            inputs_embeds=functional.embedding(ids, table),
            states=torch.cat([self.model.fuse(target_states), own_states], 1),
            position_ids=nodes.positions(queries),
            attention_mask=self.layers.masks(queries, cache, self.model.dtype, nodes),  # type: ignore[arg-type]
            past_key_values=cache,
        )[:, columns]
        logits = self.model.logits(own)
        return logits, self.likeliest(logits), own

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.model.of_target(super().likeliest(logits))
