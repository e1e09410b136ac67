"""One pass of a model as a function of tensors, for any number of rows, columns and slots: what is compiled ahead of time."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel

from ..hf_compat import LinearAttentionLayer
from ..types import Tree
from .cached_model import max_positions_of
from .masks import AttentionLayers, Nodes, no_nodes, nodes_of
from .places import fed_places
from .ragged_cache import RaggedRecurrentLayer
from .recurrent_cache import states_of
from .states import asked_for, joined
from .steps import AtOnce

#: the most columns of a pass; longer prompts run eagerly, where Python is a small part of the time
MAX_COLUMNS = 512
#: rows of the sampled embeddings
NUM_SAMPLED = 100
#: slots behind those in use of a pass that is tried out, and tensors of a `Pass` that say where its columns stand
NUM_SPARE, NUM_PLACES = 3, 8
#: rows, columns, seen slots, nodes and kept columns of two passes, by which it is told which sizes vary; no two vary alike
SAMPLES = (3, 5, 300, 3, 4), (2, 7, 333, 4, 6)
COLUMNS = tuple(columns for _, columns, *_ in SAMPLES)


@dataclass(frozen=True)
class Layout:
    """The tensors in which a pass finds what a layer caches.

    Attributes:
        keys: heads and width of keys and of values, which come first, each `(batch, heads, capacity, width)`.
        states: of each recurrent state its kind, index, shape without rows, and dtype. It is read from one tensor
            `(batch, ...)`, and that after each column is written to another, `(columns, batch, ...)`.
    """

    keys: tuple[tuple[int, int], ...] = ()
    states: tuple[tuple[str, int, tuple[int, ...], torch.dtype], ...] = ()

    @property
    def num_tensors(self) -> int:
        return len(self.keys) + 2 * len(self.states)


class TracedRecurrence:
    """What recurrent layers of a traced pass know of it, in the place of a `Recurrence`."""

    is_filler: Tensor | None = None

    def __init__(self, layers: list["TracedLayer"]):
        self.layers, self.has_filler = layers, bool(layers)
        for layer in layers:
            layer.recurrence = self  # type: ignore[assignment]

    def enter(self, width: int, is_filler: Tensor | None) -> None:
        self.is_filler, self.is_single = is_filler, width == 1  # a trace is of more
        for layer in self.layers if self.is_single else ():
            for _, states in states_of(layer):  # written in place
                states.update({index: state.clone() for index, state in states.items() if state is not None})

    def leave(self) -> None:
        for layer in self.layers if self.is_single else ():
            layer.finish_columns()


class TracedLayer(RaggedRecurrentLayer):
    """What one layer caches, in a pass that is traced.

    Written by `index_put_`, which the compiler does in place; a `scatter_` would copy the whole cache.
    """

    def __init__(self, cache: "TracedCache", layout: Layout, tensors: Sequence[Tensor]):
        super().__init__(cache, None, len(layout.states))  # type: ignore[arg-type]
        if layout.keys:
            self.keys, self.values, *tensors = tensors
            self.is_initialized = True
        self.after: dict[tuple[str, int], Tensor] = {}
        self.windows: dict[int, Tensor] = {}
        held = dict(states_of(self))
        for (name, index, *_), state, after in zip(layout.states, tensors[::2], tensors[1::2], strict=True):
            held[name][index], self.after[name, index] = state, after
            self.has_previous_state[index] = True

    @property
    def steps(self) -> AtOnce | None:  # type: ignore[override]
        state, is_filler = self.recurrent_states.get(0), self.recurrence.is_filler
        return None if state is None else AtOnce(state, self.after["recurrent", 0], is_filler)  # type: ignore[arg-type]

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, *args, **kwargs) -> Tensor:
        size = self.conv_states[state_idx].shape[-1]
        inputs = super().update_conv_state(conv_states, state_idx, size)
        self.after["conv", state_idx].copy_(inputs[..., 1:].unfold(-1, size, 1).movedim(-2, 0))
        return inputs

    def finish_columns(self) -> None:
        """A single column was run as in plain decoding."""
        held = dict(states_of(self))
        for (name, index), after in self.after.items():
            after.copy_(held[name][index])  # type: ignore[arg-type]

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        cache = self.cache
        batch, heads = key_states.shape[:2]
        rows = torch.arange(batch, device=key_states.device)[:, None, None]
        index = (rows, torch.arange(heads, device=key_states.device)[None, :, None], cache.slots[:, None])  # type: ignore[index]
        for part, states in ((self.keys, key_states), (self.values, value_states)):
            part.index_put_(index, states)
        return self.keys[:, :, : cache.end], self.values[:, :, : cache.end]


class TracedCache(Cache):
    """A `RaggedCache` for `ragged_pass` and masks, over tensors that are inputs of the pass: those of each layer."""

    start = 0
    end: int
    slots: Tensor

    def __init__(self, layouts: Sequence[Layout], tensors: Sequence[Sequence[Tensor]]):
        layers = [TracedLayer(self, *layer) for layer in zip(layouts, tensors, strict=True)]
        self.recurrence = TracedRecurrence([layer for layer in layers if layer.after])
        super().__init__(layers=layers)  # type: ignore[arg-type]

    def first(self, window: int | None) -> int:
        """Windows look at all slots: what a mask hides changes no shape."""
        return 0


def layouts_of(model: PreTrainedModel, layers: AttentionLayers) -> list[Layout]:
    """What the `layers` of `model` cache; the shapes of recurrent states are those that a short prompt leaves."""
    if not layers.are_recurrent:
        return [Layout((layers.shape_of_keys(),) * 2)] * layers.config.num_hidden_layers
    cache = DynamicCache(config=layers.config)
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with torch.no_grad():
        model(input_ids=ids, use_cache=True, **{layers.cache_name: cache})
    layouts = []
    for layer, attends in zip(cache.layers, layers.attends, strict=True):
        held = states_of(layer) if isinstance(layer, LinearAttentionLayer) else []
        states = [(name, i, state) for name, by_index in held for i, state in by_index.items() if state is not None]
        kinds = tuple((name, index, tuple(state.shape[1:]), state.dtype) for name, index, state in states)
        keys = [(part.shape[1], part.shape[3]) for part in (layer.keys, layer.values)] if attends else []
        layouts.append(Layout(tuple(keys), kinds))
    return layouts


def by_layer(layouts: Sequence[Layout], tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """The last of `tensors`, those of each layer."""
    ends = [*itertools.accumulate((layout.num_tensors for layout in layouts), initial=0)]
    first = len(tensors) - ends[-1]
    return [tensors[first + begin : first + end] for begin, end in itertools.pairwise(ends)]


def ragged_pass(
    model: Callable[..., Any],
    cache: Any,
    layers: AttentionLayers,
    tensors: Sequence[Tensor],
    prepared: Callable[[Any], Any] = lambda masks: masks,
    **asked: Any,
) -> Any:
    """The outputs of one pass as a function of tensors.

    Args:
        cache: a `RaggedCache`, or a `TracedCache`.
        tensors: these, in this order:
        input_ids: `(batch, q)`.
        first: `(batch,)` the slot of each row's first column; columns whose slot is below `seen (batch,)` are filler.
        bounds: `(batch, 3)` the spare slot, the last slot whose position a row can have, and its positions less its slots.
        slots: `(n,)` 0, 1, ..., n - 1: the slots that attention looks at.
        root, depths, ancestors: of a tree, as `Nodes` takes them; a chain has `no_nodes`.
        prepared: makes of masks those that the model is given.
        asked: what else the model is given.
    """
    input_ids, first, seen, bounds, slots, *tree = tensors
    queries, cache.slots = fed_places(first, seen, bounds, input_ids.shape[1])
    cache.end, nodes = slots.shape[0], Nodes(*tree)
    is_filler = cache.slots == bounds[:, :1] if cache.recurrence.has_filler else None
    positions = torch.minimum(nodes.positions(queries), bounds[:, 1:2]) + bounds[:, 2:]
    mask = prepared(layers.masks(queries, cache, nodes, is_filler))
    return layers.run(model, cache, input_ids, positions, mask, is_filler, **asked)


def sizes_that_vary(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[dict[int, tuple[int, tuple]], ...]:
    """Of tensors of two passes of `SAMPLES`, by dimension, a factor and the pair of sizes in both that it multiplies.

    The factor is 1 except of multiples of the columns, such as the sizes of folded masks.
    """

    def factored(a: int, b: int) -> tuple[int, tuple[int, int]]:
        times = a // COLUMNS[0] if a * COLUMNS[1] == b * COLUMNS[0] else 1
        return times, (a // times, b // times)

    return tuple(
        {dim: factored(a, b) for dim, (a, b) in enumerate(zip(like.shape, unlike.shape, strict=True)) if a != b}
        for like, unlike in zip(one, other, strict=True)
    )


class TracedPass(nn.Module):
    """One pass of `model` as a function of tensors: see `sample` for their order."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model, self.layers = model, AttentionLayers(model)
        self.layouts = layouts_of(model, self.layers)
        self.num_tensors = sum(layout.num_tensors for layout in self.layouts)

    @abstractmethod
    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What a pass of `num_columns` random tokens a row reads of them, each tensor `(rows, columns, ...)`."""

    @abstractmethod
    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        """Further tensors of the caller's, the same in each pass."""

    def cache_of(self, tensors: Sequence[Tensor]) -> TracedCache:
        """A cache over the last of the arguments of a pass."""
        return TracedCache(self.layouts, by_layer(self.layouts, tensors))

    def written(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Of the arguments of a pass that is over, all that it may have written but what it wrote to the spare slot."""
        written: list[Tensor] = []
        for layout, tensors in zip(self.layouts, by_layer(self.layouts, inputs), strict=True):
            num_keys = len(layout.keys)
            written += [part[:, :, :-1] for part in tensors[:num_keys]] + [*tensors[num_keys:]]
        return written

    def sample(
        self, num_rows: int, num_columns: int, seen: int, num_nodes: int = 1, num_kept: int | None = None, seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Arguments of a pass over random tokens and caches; every other row feeds a column less than the others.

        These are `places`, the columns whose logits are kept, what else is `given`, and the tensors of each layer's `Layout`.

        Args:
            num_nodes: of a random tree in each row, which are the last columns; of fewer than 2, the columns are a chain.
            num_kept: by default, all.
        """
        generator = torch.Generator().manual_seed(seed)
        places = self.places(num_rows, num_columns, seen, num_nodes, generator)
        given = self.given(num_rows, seen + num_columns + NUM_SPARE, generator)
        caches = (self.random_cache(layout, num_rows, num_columns, seen, generator) for layout in self.layouts)
        return (*places, torch.arange(num_columns)[:num_kept], *given, *itertools.chain.from_iterable(caches))

    def random_cache(
        self, layout: Layout, num_rows: int, num_columns: int, seen: int, generator: torch.Generator
    ) -> list[Tensor]:
        """What a layer of this layout caches, as `sample` has it."""
        capacity, shapes = seen + num_columns + NUM_SPARE, list[tuple[tuple[int, ...], torch.dtype]]()
        for heads, dim in layout.keys:
            shapes.append(((num_rows, heads, capacity, dim), self.model.dtype))
        for *_, shape, dtype in layout.states:
            shapes += [((num_rows, *shape), dtype), ((num_columns, num_rows, *shape), dtype)]
        return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in shapes]

    def places(
        self, num_rows: int, num_columns: int, seen: int, num_nodes: int, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """What is fed and where it stands: the first of the arguments, up to a tree's."""
        end = seen + num_columns
        last = min(end, (max_positions_of(self.model) or end + 1) - 1)
        known = seen + torch.arange(num_rows) % 2 * (num_columns > 1)
        if num_nodes > 1:
            parents = [torch.randint(-1, node, (num_rows,), generator=generator) for node in range(num_nodes)]
            nodes = nodes_of(Tree(torch.stack(parents, 1), depth=num_nodes), torch.full((num_rows,), end - num_nodes))
        else:
            nodes = no_nodes(num_rows, end)
        return (
            *self.fed(num_rows, num_columns, generator),
            torch.full((num_rows,), seen),
            known,
            torch.tensor([[end + NUM_SPARE - 1, last, 0]]).repeat(num_rows, 1),
            torch.arange(end),
            *nodes,
        )

    @property
    def samples(self) -> list[tuple[Tensor, ...]]:
        """Arguments of two passes, to trace it with."""
        return [self.sample(*sizes) for sizes in SAMPLES]

    def likeliest(self, logits: Tensor) -> Tensor:
        """Where `logits (batch, m, vocab)` are largest, as ids of the target."""
        return logits.argmax(-1)


class Pass(TracedPass):
    """A pass of a language model: see `forward`.

    Args:
        recorded: which of transformers' `hidden_states` it keeps.
    """

    def __init__(self, model: PreTrainedModel, recorded: tuple[int, ...] = ()):
        super().__init__(model)
        self.recorded = recorded

    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        num_ids = self.model.get_input_embeddings().num_embeddings
        return (torch.randint(num_ids, (num_rows, num_columns), generator=generator),)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        size = len(self.recorded) * self.layers.config.hidden_size
        return [torch.zeros(num_rows, capacity, size, dtype=self.model.dtype)] if self.recorded else []

    def written(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        given, end = inputs[NUM_PLACES + 1 : len(inputs) - self.num_tensors], len(inputs[4])
        return super().written(inputs) + [states[:, end - inputs[0].shape[1] : end] for states in given]

    def forward(self, *tensors: Tensor, prepared: Callable[[Any], Any] = lambda masks: masks) -> tuple[Tensor, Tensor]:
        """
        Args:
            tensors: those of `ragged_pass`, and these:
            columns: `(m,)`, those whose logits are computed.
            record: if states are `recorded`, one `(batch, capacity, states * hidden)`, for them in their keys' slots.
            caches: of all layers, one after the other, the tensors of its `Layout`.
            prepared: as in `ragged_pass`.

        Returns:
            Logits `(batch, m, vocab)`, and where they are largest, `(batch, m)`.
        """
        columns, *others = tensors[NUM_PLACES:]
        record, cache = others[: len(others) - self.num_tensors], self.cache_of(others)
        asked: dict[str, Any] = {"logits_to_keep": columns} if self.layers.keeps_logits else {}
        if self.recorded:
            asked["output_hidden_states"] = asked_for(self.recorded)
        places = tensors[:NUM_PLACES]
        outputs = ragged_pass(self.model, cache, self.layers, places, prepared, **asked)
        for states in record:
            rows = torch.arange(states.shape[0], device=states.device)[:, None]
            states.index_put_((rows, cache.slots), joined(outputs, self.recorded, states.device))
        logits = outputs.logits if self.layers.keeps_logits else outputs.logits[:, columns]
        return logits, self.likeliest(logits)


class HeadPass(TracedPass):
    """A pass of a draft head, from tokens and states to tokens and states; see `forward`."""

    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        num_known = num_columns // 2 if num_rows % 2 else num_columns
        sizes = (num_known, self.model.fc.in_features), (num_columns - num_known, self.model.fc.out_features)
        fed: list[Tensor] = []
        for width, size in sizes:
            fed.append(torch.randint(NUM_SAMPLED, (num_rows, width), generator=generator))
            fed.append(torch.randn(num_rows, width, size, generator=generator).to(self.model.dtype))
        return tuple(fed)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        shape = (NUM_SAMPLED + num_rows, self.layers.config.hidden_size)
        return [torch.randn(shape, generator=generator).to(self.model.dtype)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            tensors: these, in this order:
            tokens, target_states: `(batch, n)` and, as `Eagle3Model.fuse` takes them, `(batch, n, ...)`, of the first columns.
            drafted, own_states: `(batch, width - n)` and `(batch, width - n, hidden)`, of the others.
            first, seen, bounds, slots, root, depths, ancestors: as those of `ragged_pass`.
            columns: `(m,)`, those whose logits are computed.
            table: embeddings `(ids, hidden)`; what is past the last id reads as that.
            caches: as those of `Pass`.

        Returns:
            Of `m` columns logits `(batch, m, vocab)` over its own vocabulary, the likeliest tokens `(batch, m)` as ids of the
            target, and the head's own states `(batch, m, hidden)`.
        """
        tokens, target_states, drafted, own_states, first, seen, bounds, slots, *others = tensors
        *tree, columns, table = others[: len(others) - self.num_tensors]
        cache = self.cache_of(others)
        ids = torch.cat([tokens, drafted], 1).clamp(max=table.shape[0] - 1)
        queries, cache.slots = fed_places(first, seen, bounds, ids.shape[1])
        cache.end, nodes = slots.shape[0], Nodes(*tree)
        own = self.model(
            inputs_embeds=functional.embedding(ids, table),
            states=torch.cat([self.model.fuse(target_states), own_states], 1),
            position_ids=nodes.positions(queries),
            attention_mask=self.layers.masks(queries, cache, nodes),  # type: ignore[arg-type]
            past_key_values=cache,
        )[:, columns]
        logits = self.model.logits(own)
        return logits, self.likeliest(logits), own

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.model.of_target(super().likeliest(logits))
