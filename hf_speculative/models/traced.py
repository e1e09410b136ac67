"""One pass of a model as a function of tensors, for any number of rows, columns and slots: what is compiled ahead of time."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..types import Tree
from .cached_model import max_positions_of
from .masks import AttentionLayers, Nodes, depths_of_keys, no_nodes, nodes_of
from .positions import with_given_positions
from .ragged_cache import Layout, fed_places
from .shallow import asked_for, joined
from .traced_cache import TracedCache, by_layer, layouts_of, layouts_of_head, size_of_encoded

#: the most columns of a pass; longer prompts run eagerly, where Python is a small part of the time
MAX_COLUMNS = 512
#: rows of the sampled embeddings
NUM_SAMPLED = 100
#: slots behind those in use of a pass that is tried out, and tensors of a `Pass` that say where its columns stand
NUM_SPARE, NUM_PLACES = 3, 8
#: rows, columns, seen slots, nodes and kept columns of two passes, by which it is told which sizes vary; no two vary alike
SAMPLES = (3, 5, 300, 3, 4), (2, 7, 333, 4, 6)
ROWS, COLUMNS, *_ = zip(*SAMPLES, strict=True)


def ragged_pass(model: Callable[..., Any], cache: Any, layers: AttentionLayers, tensors: Sequence[Tensor], **asked: Any) -> Any:
    """The outputs of one pass as a function of tensors.

    Args:
        cache: a `RaggedCache`, or a `TracedCache`.
        tensors: these, in this order:
        input_ids: `(batch, q)`.
        first: `(batch,)` the slot of each row's first column; columns whose slot is below `seen (batch,)` are filler.
        bounds: `(batch, 3)` the spare slot, the last slot whose position a row can have, and its positions less its slots.
        slots: `(n,)` 0, 1, ..., n - 1: the slots that attention looks at.
        root, depths, ancestors: of a tree, as `Nodes` takes them; a chain has `no_nodes`.
        asked: what else the model is given.
    """
    input_ids, first, seen, bounds, slots, *tree = tensors
    queries, cache.slots = fed_places(first, seen, bounds, input_ids.shape[1])
    cache.end, nodes = slots.shape[0], Nodes(*tree)
    is_filler = cache.slots == bounds[:, :1] if cache.recurrence.has_filler else None
    depths = torch.minimum(nodes.positions(queries), bounds[:, 1:2])
    positions = depths + bounds[:, 2:]
    if layers.columns.are_read:
        layers.columns.begin(positions, depths, depths_of_keys(cache.end, nodes, slots.device))
    mask = layers.masks(queries, cache, nodes, is_filler)
    # A trace is of chains and trees; a chain alone is stepped.
    may_branch = isinstance(cache, TracedCache) or nodes.depths.shape[1] > 1
    ancestors = nodes.among(queries, is_filler) if cache.recurrence.layers and may_branch else None
    cache.recurrence.enter(input_ids.shape[1], is_filler, ancestors)
    return layers.run(model, cache, input_ids, positions, mask, **asked)


def sizes_that_vary(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[dict[int, tuple[int, tuple]], ...]:
    """Of tensors of two passes of `SAMPLES`, by dimension, a factor and the pair of sizes in both that it multiplies.

    The factor is 1 except of multiples of the columns, such as the sizes of folded masks, and of the rows, such as of ALiBi.
    """

    def factored(a: int, b: int) -> tuple[int, tuple[int, int]]:
        times = next((a // first for first, other in (ROWS, COLUMNS) if a * other == b * first), 1)
        return times, (a // times, b // times)

    return tuple(
        {dim: factored(a, b) for dim, (a, b) in enumerate(zip(like.shape, unlike.shape, strict=True)) if a != b}
        for like, unlike in zip(one, other, strict=True)
    )


class TracedPass(nn.Module):
    """One pass of `model` as a function of tensors: see `sample` for their order.

    Attributes:
        num_places: tensors that say what is fed, and where it stands.
    """

    num_places = NUM_PLACES

    def __init__(self, model: PreTrainedModel, layouts_of: Callable[[PreTrainedModel, AttentionLayers], list[Layout]]):
        super().__init__()
        self.layers = AttentionLayers(model)
        self.layouts = layouts_of(model, self.layers)
        self.model = with_given_positions(model, self.layers.columns)
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
        for state in layout.states:
            shapes += state.sizes(num_rows, num_columns, num_before=1 + seen % 8)
        shapes += [((num_rows, heads, num_encoded(seen), dim), self.model.dtype) for heads, dim in layout.cross]
        numbers = ((torch.randn(shape, generator=generator), dtype) for shape, dtype in shapes)
        return [one > 0 if dtype == torch.bool else one.to(dtype) for one, dtype in numbers]

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
        fed, first = self.fed(num_rows, num_columns, generator), torch.full((num_rows,), seen)
        bounds = torch.tensor([[end + NUM_SPARE - 1, last, 0]]).repeat(num_rows, 1)
        return *fed, first, known, bounds, torch.arange(end), *nodes

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
        super().__init__(model, layouts_of)
        self.recorded = recorded

    def fed(self, num_rows: int, num_columns: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        num_ids = self.model.get_input_embeddings().num_embeddings
        return (torch.randint(num_ids, (num_rows, num_columns), generator=generator),)

    def given(self, num_rows: int, capacity: int, generator: torch.Generator) -> list[Tensor]:
        size = len(self.recorded) * self.layers.config.hidden_size
        return [torch.zeros(num_rows, capacity, size, dtype=self.model.dtype)] if self.recorded else []

    def written(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        given, end = inputs[self.num_places + 1 : len(inputs) - self.num_tensors], len(inputs[4])
        return super().written(inputs) + [states[:, end - inputs[0].shape[1] : end] for states in given]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            tensors: those of `ragged_pass`, those of `AttentionLayers.encoded`, and these:
            columns: `(m,)`, those whose logits are computed.
            record: if states are `recorded`, one `(batch, capacity, states * hidden)`, for them in their keys' slots.
            caches: of all layers, one after the other, the tensors of its `Layout`.

        Returns:
            Logits `(batch, m, vocab)`, and where they are largest, `(batch, m)`.
        """
        places, (columns, *others) = tensors[: self.num_places], tensors[self.num_places :]
        record, cache = others[: len(others) - self.num_tensors], self.cache_of(others)
        asked: dict[str, Any] = {"logits_to_keep": columns} if self.layers.keeps_logits else {}
        if self.recorded:
            asked["output_hidden_states"] = asked_for(self.recorded)
        asked |= self.layers.encoded(places[0].shape[1], *places[NUM_PLACES:])
        outputs = ragged_pass(self.model, cache, self.layers, places[:NUM_PLACES], **asked)
        for states in record:
            rows = torch.arange(states.shape[0], device=states.device)[:, None]
            states.index_put_((rows, cache.slots), joined(outputs, self.recorded, states.device))
        logits = outputs.logits if self.layers.keeps_logits else outputs.logits[:, columns]
        return logits, self.likeliest(logits)

    def nothing_encoded(self, num_rows: int) -> list[Tensor]:
        """What `places` ends with where it is not read."""
        return []


class EncoderDecoderPass(Pass):
    """A pass of a decoder that attends to an encoder's output."""

    num_places = NUM_PLACES + 2

    def places(
        self, num_rows: int, num_columns: int, seen: int, num_nodes: int, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        mask = torch.ones(num_rows, num_encoded(seen), dtype=torch.long)
        mask[1::2, 1:][:, -1:] = 0
        states = torch.randn(*mask.shape, size_of_encoded(self.model), generator=generator).to(self.model.dtype)
        return (*super().places(num_rows, num_columns, seen, num_nodes, generator), states, mask)

    def nothing_encoded(self, num_rows: int) -> list[Tensor]:
        states = torch.zeros(num_rows, 1, size_of_encoded(self.model), dtype=self.model.dtype)
        return [states, torch.zeros(num_rows, 1, dtype=torch.long)]


def num_encoded(seen: int) -> int:
    """Of a pass that is tried out, how much the encoder read."""
    return 1 + seen // 3


class HeadPass(TracedPass):
    """A pass of a draft head, from tokens and states to tokens and states; see `forward`."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model, lambda _, layers: layouts_of_head(layers))

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
        embeds, states = functional.embedding(ids, table), torch.cat([self.model.fuse(target_states), own_states], 1)
        masks = self.layers.masks(queries, cache, nodes)  # type: ignore[arg-type]
        own = self.model(embeds, states, nodes.positions(queries), attention_mask=masks, past_key_values=cache)[:, columns]
        logits = self.model.logits(own)
        return logits, self.likeliest(logits), own

    def likeliest(self, logits: Tensor) -> Tensor:
        return self.model.of_target(super().likeliest(logits))
