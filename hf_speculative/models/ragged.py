"""A decoder-only attention model with a ragged cache, in which each row has its own length.

A pass feeds each row what it has not seen, under an explicit mask, slot <= position. Where a row feeds less than the widest,
the filler columns go to a spare slot that no mask shows. The nodes of a tree of draft tokens have slots of their own, in which
those that were kept then move up. Rows of equal length need none of this: they are written as a slice,
and the model builds the masks that it builds in plain `generate`.
"""

import torch
from torch import Tensor
from transformers import CacheLayerMixin, DynamicCache, PreTrainedModel

from ..interfaces import CachedModel
from ..types import Batch, columns_from, uploaded
from . import pool
from .attention import takes_masks, with_folded_attention
from .cached_model import device_of, last_id
from .masks import AttentionLayers, Nodes, depths_of_keys, nodes_of
from .positions import reads_length, with_given_positions
from .prompts import by_length, read, read_alone
from .ragged_cache import RaggedLayer
from .stepped import convolves_along_paths, with_stepped_mixers


class RaggedModel(CachedModel):
    """A decoder-only attention model with a ragged cache.

    Args:
        clamp_ids: read ids past the embedding table as its last one, instead of failing.
    """

    #: layers whose states are kept, see `RecordingModel`
    recorded: tuple[int, ...] = ()
    #: prompts may be read in several passes by their lengths
    reads_by_length = True

    def __init__(self, model: PreTrainedModel, clamp_ids: bool = False):
        self.original, self.layers = model, AttentionLayers(model)
        self.model = with_given_positions(with_stepped_mixers(with_folded_attention(model)), self.layers.columns)
        self.last_id = last_id(model) if clamp_ids else None
        self.reads_prompts = not takes_masks(model)
        self.takes_levels = not self.layers.are_recurrent
        self.takes_trees = self.takes_levels or convolves_along_paths(model)
        self.cache = self.layers.new_cache()
        self.reset()
        self.device, self.dtype = device_of(model), model.dtype

    def reset(self) -> None:
        if self.cache.num_rows or not self.cache.capacity:
            self.cache = pool.take(self.original, self.layers.new_cache)
        self.host_seen: list[int] = []
        self.seen: Tensor | None = None
        #: of the tree that the last pass fed
        self.num_nodes = 0
        #: of each row, its positions less its slots
        self.offsets: list[int] = []
        #: rows of the call that are done, what of them is cached, and offsets, in the order of their lanes behind those running
        self.done: list[tuple[int, int, int]] = []

    @property
    def shares_prefixes(self) -> bool:  # type: ignore[override]
        layers = self.layers
        return not (self.reads_alone or layers.are_recurrent or layers.columns.are_read or reads_length(self.original))

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        ends, widths = self._begin(batch, ahead)
        assert self.seen is not None
        if self.layers.are_recurrent and batch.tree is not None and ahead > 0 and not any(self.host_seen):
            # Nodes start from the state after the text.
            of_text, of_nodes = self.logits(batch, 0, 1), self.logits(batch, ahead, min(num_last, ahead))
            return of_nodes if num_last <= ahead else torch.cat([of_text, of_nodes], 1)
        if self.cache.recurrence.reads_before(self.host_seen, max(widths), ahead):
            self.prefill(batch)
            ends, widths = self._begin(batch, ahead)
        end, width = max(ends), max(widths)
        self.cache.reserve(len(ends), end, limit=batch.max_length + ahead)
        self.cache.start, self.cache.end, self.cache.lowest = end - width, end, min(self.host_seen)
        nodes = Nodes(*self._nodes(batch, ahead)) if batch.tree is not None and ahead > 0 else None
        has_filler, is_filler = min(widths) < width, None
        self.cache.is_prompt = self.reads_prompts and has_filler and nodes is None and not any(self.host_seen)
        # Without filler each row goes on where its cache ends, which is there as a tensor already.
        first = self.seen if not has_filler else batch.lengths - batch.padding + (ahead - width)
        input_ids = self._input_ids(batch, ahead, width)
        are_equal = not has_filler and min(ends) == end
        queries = columns_from(first.to(self.device), width)
        self.cache.slots = None if are_equal else queries
        if has_filler:
            is_filler = queries < self.seen.to(self.device)[:, None]
            self.cache.slots = queries.masked_fill(is_filler, self.cache.capacity - 1)
            queries = queries.masked_fill(is_filler, 0)
        position_ids = queries if nodes is None else nodes.positions(queries)
        if end > batch.max_position + 1:
            # A row near the maximum length may be fed beyond it, because others draft further: nothing reads that.
            position_ids = position_ids.clamp(max=batch.max_position)
        if are_equal and nodes is None and (width == 1 or end == width):
            # An empty cache or a single query: the model's own masks, and with them plain decoding's kernels.
            attention_mask = None
        elif self.cache.is_prompt and is_filler is not None:
            attention_mask = (~is_filler).long()
        else:
            attention_mask = self.layers.masks(queries, self.cache, nodes, is_filler)

        self.cache.recurrence.begin(self.host_seen, [width - own for own in widths], width, ahead)
        keep = {"logits_to_keep": num_last} if self.layers.keeps_logits else {}
        depths = position_ids
        if any(self.offsets):
            position_ids = position_ids + uploaded(self.offsets, self.device)[:, None]
        if self.layers.columns.are_read:
            num_positions = min(end + max(self.offsets), batch.max_length)
            self.layers.columns.begin(position_ids, depths, depths_of_keys(end, nodes, self.device), num_positions)
        ancestors = None if nodes is None or not self.layers.are_recurrent else nodes.among(queries, is_filler)
        self.cache.recurrence.enter(width, is_filler, ancestors)
        outputs = self.layers.run(self.run, self.cache, input_ids, position_ids, attention_mask, **keep)
        self._finish(ends, first + width)
        return outputs.logits[:, -num_last:].to(batch.tokens.device)

    def _begin(self, batch: Batch, ahead: int) -> tuple[list[int], list[int]]:
        """Each row's tokens once the pass is over, and the columns that it feeds."""
        self.num_nodes = 0
        if self.seen is None:
            self._start(batch, ahead)
            self._read_apart(batch, ahead)
        ends = self._ends(batch, ahead)
        return ends, [end - seen for end, seen in zip(ends, self.host_seen, strict=True)]

    def _start(self, batch: Batch, ahead: int) -> None:
        """Nothing of `batch` was read."""
        self.cache.begin(len(batch.rows), limit=batch.max_length + ahead)
        self.host_seen, self.seen = [0] * len(batch.rows), torch.zeros_like(batch.lengths)
        self.offsets = self._offsets(batch)
        self.cache.recurrence.reset(len(batch.rows))

    def _read_apart(self, batch: Batch, ahead: int) -> None:
        """Read prompts up to their last tokens in several passes, where that was asked for or is faster."""
        groups = by_length(self._ends(batch, 0), self.device) if self.reads_by_length and not self.reads_alone else []
        if groups and reads_length(self.original):  # of the longest row
            groups = []
        if groups or self.reads_alone:
            self.cache.reserve(len(batch.rows), max(self._ends(batch, ahead)), limit=batch.max_length + ahead)
        for rows in groups:
            read(self, batch.part(rows), [rows])
        if self.reads_alone:
            read_alone(self, batch, list(range(len(batch.rows))))

    def _offsets(self, batch: Batch) -> list[int]:
        return list(batch.host_padding) if self.layers.columns.are_read and not self.rows_are_alone else [0] * len(batch.rows)

    @staticmethod
    def _ends(batch: Batch, ahead: int) -> list[int]:
        return [length - pad + ahead for length, pad in zip(batch.host_lengths, batch.host_padding, strict=True)]

    def _nodes(self, batch: Batch, ahead: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tree in `batch`, all of whose nodes are in the cache once the pass is over."""
        assert batch.tree is not None and batch.tree.parents.shape[1] == ahead
        self.num_nodes = ahead
        first_nodes = [end - ahead for end in self._ends(batch, ahead)]
        self.cache.lowest = min(self.cache.lowest, *first_nodes)  # of positions: a node's is at most its slot
        return nodes_of(batch.tree, (batch.lengths - batch.padding).to(self.device))

    def _input_ids(self, batch: Batch, ahead: int, width: int) -> Tensor:
        """`(batch, width)` ids of the columns before each row's end; what a shorter row has before its first is filler."""
        if max(batch.host_lengths) == min(batch.host_lengths):
            last = batch.host_lengths[0] + ahead
            input_ids = batch.tokens[:, last - width : last]
        else:
            columns = columns_from(batch.lengths + (ahead - width), width)
            has_columns = min(batch.host_lengths) + ahead >= width
            input_ids = batch.tokens.gather(1, columns if has_columns else columns.clamp(min=0))
        return self.readable(input_ids).to(self.device)

    def readable(self, ids: Tensor) -> Tensor:
        """Ids that the model has embeddings for."""
        return ids if self.last_id is None else ids.clamp(max=self.last_id)

    def _finish(self, ends: list[int], seen: Tensor, num_passes: int = 1) -> None:
        self.cache.recurrence.finish(ends)
        self.num_forwards += num_passes
        self.host_seen, self.seen = ends, seen

    def run(self, **inputs):
        """The model's own forward; a subclass may ask it for more."""
        return self.model(**inputs)

    def rollback(self, batch: Batch) -> None:
        if self.seen is None:
            return
        self.rows = batch.rows
        if batch.path is not None:
            self._keep_path(batch)
        self.host_seen = [min(seen, end - 1) for seen, end in zip(self.host_seen, self._ends(batch, 0), strict=True)]
        self.seen = torch.minimum(self.seen, batch.lengths - batch.padding - 1)
        self._go_back()

    def _go_back(self) -> None:
        """Recurrent layers follow to what was seen, or all rows begin again."""
        if (back := self.cache.recurrence.go_back(self.host_seen)) != self.host_seen:
            self._set_seen(list(range(len(back))), back)

    def prefill(self, batch: Batch) -> None:
        has_one = max(map(len, batch.history)) == 1
        if not has_one and not max(self._begin(batch, ahead=-1)[1]):
            return  # read apart or shared, but for the last tokens, which the next pass reads
        if not self.layers.are_recurrent or has_one:
            super().prefill(batch)
        else:  # no state is kept of what stands before a prompt's end
            self.logits(batch, ahead=-1, num_last=1)
            self.rollback(batch)

    def _keep_path(self, batch: Batch) -> None:
        """Of the tree's nodes that were fed, those on the path that was kept move up to where a chain would have them."""
        assert batch.path is not None and batch.host_path is not None
        kept = [len(path) for path in batch.host_path]
        firsts = [end - num - 1 for end, num in zip(self._ends(batch, ahead=0), kept, strict=True)]
        if self.layers.are_recurrent and not self.num_nodes:  # it was not fed the tree
            self._set_seen(list(range(len(firsts))), list(map(min, firsts, self.host_seen)))
            return
        seen = [
            first + sum(first + node < seen for node in path) if seen > first else seen
            for first, seen, path in zip(firsts, self.host_seen, batch.host_path, strict=True)
        ]
        if seen == self.host_seen and all(seen <= first for seen, first in zip(seen, firsts, strict=True)):
            return  # it was not fed the tree
        first = uploaded(firsts, batch.path.device)[:, None]
        self.cache.move(first + batch.path, first + torch.arange(batch.path.shape[1], device=first.device))
        if self.layers.are_recurrent:
            self.cache.recurrence.follow(batch.host_path, self.num_nodes, seen)
        self._set_seen(list(range(len(seen))), seen)

    def select(self, indices: list[int]) -> None:
        if self.seen is None:
            return
        if self.keeps_done:
            leaving = sorted({*range(len(self.host_seen))} - {*indices})
            self.done = [(self.rows[lane], self.host_seen[lane], self.offsets[lane]) for lane in leaving] + self.done
        self.host_seen = [self.host_seen[i] for i in indices]
        self.seen = self.seen[uploaded(indices, self.seen.device, torch.long)]
        self.offsets = [self.offsets[i] for i in indices]
        self.cache.select(indices)
        if not self.keeps_done:  # such as a server's, whose calls may never end
            self.cache.recurrence.behind.clear()

    def release(self) -> None:
        self.cache.num_rows = 0
        pool.give_back(self.original, self.cache)
        self.cache = self.layers.new_cache()

    def admit(self, newcomers: Batch, lanes: list[int]) -> None:
        if self.seen is None:
            return  # the first pass is still to come, and reads all rows
        if self.reads_alone:
            read_alone(self, newcomers, lanes)
        else:
            super().admit(newcomers, lanes)

    def share(self, other, batch: Batch) -> None:
        shared = [min(prefix.num_tokens, other.host_seen[prefix.lane]) for prefix in batch.prefixes]
        if any(shared) and self.shares_prefixes:
            self._start(batch, ahead=0)
            rows = list(range(len(shared)))
            self.cache.reserve(len(shared), max(shared), limit=other.cache.capacity)
            self.cache.take(other.cache, [prefix.lane for prefix in batch.prefixes], rows, max(shared))
            self._set_seen(rows, shared)
            # A row that shares nothing names lane 0, whose offset is not its own.
            pairs = zip(batch.prefixes, shared, strict=True)
            self.offsets = [other.offsets[prefix.lane] if num else 0 for prefix, num in pairs]

    def take(self, other, lanes: list[int]) -> None:
        end = max(other.host_seen)
        self.cache.reserve(self.cache.num_rows, end, limit=other.cache.capacity)
        self.cache.take(other.cache, list(range(len(lanes))), lanes, end)
        self.cache.recurrence.take(other.cache.recurrence, lanes)
        for lane, offset in zip(lanes, other.offsets, strict=True):
            self.offsets[lane] = offset
        self._set_seen(lanes, other.host_seen)

    def forget(self, lanes: list[int]) -> None:
        self._set_seen(lanes, [0] * len(lanes))
        if self.seen is not None:
            self._go_back()

    def _set_seen(self, lanes: list[int], values: list[int]) -> None:
        if self.seen is None:
            return
        for lane, seen in zip(lanes, values, strict=True):
            self.host_seen[lane] = seen
        self.seen = uploaded(self.host_seen, self.seen.device)

    def load(self, cache, batch: Batch) -> None:
        length = cache.get_seq_length()
        self.host_seen = [max(0, length - pad) for pad in batch.host_padding]
        self.seen, self.offsets = uploaded(self.host_seen, batch.tokens.device), self._offsets(batch)
        self.cache.begin(len(batch.rows), limit=batch.max_length)
        self.cache.reserve(len(batch.rows), length, limit=batch.max_length)
        # Layers that read the keys of others hold none, and older transformers do not list them.
        listed = zip(self.cache.layers, DynamicCache(config=self.layers.config).layers, strict=False)
        layers = [layer for layer, like in listed if isinstance(like, CacheLayerMixin)]
        filled = [given for given in cache.layers if getattr(given, "keys", None) is not None]
        self.cache.recurrence.load(cache, self.host_seen)
        for layer, given in zip(layers, filled, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(given.keys, given.values)
            for row, seen in enumerate(self.host_seen):
                num_kept = min(given.keys.shape[2], seen)  # a sliding layer holds its last window only
                for part, kept in ((layer.keys, given.keys), (layer.values, given.values)):
                    part[row, :, seen - num_kept : seen] = kept[row, :, kept.shape[2] - num_kept :]

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        rows, self.done = self.done, []
        self.rows, self.offsets = [row for row, *_ in rows], [offset for *_, offset in rows]
        self.host_seen = [min(seen, lengths[row] - padding[row] - 1) for row, seen, _ in rows]
        self.seen = uploaded(self.host_seen, sequences.device)
        self.cache.num_rows = len(rows)
        self.cache.recurrence.recall([seen for _, seen, _ in rows])
        self._go_back()
        batch = Batch(sequences[:, :-1], padding, sequences.shape[1]).part(self.rows)
        if max(self._begin(batch, ahead=0)[1]):  # what plain decoding feeds after ends
            self.logits(batch, ahead=0, num_last=1)
        stored = self._exported(sequences.shape[1] - 1, padding)
        if given is None:
            return stored
        given.layers = stored.layers
        return given

    def _exported(self, num_columns: int, padding: list[int]) -> DynamicCache:
        """The first `num_columns` columns of all rows as a transformers cache; 0 where left padding stands."""
        stored = DynamicCache(config=self.layers.config)
        self.cache.recurrence.store(stored, [self.rows.index(row) for row in range(len(self.rows))])
        for index, layer in enumerate(self.cache.layers):
            if isinstance(layer, RaggedLayer) and layer.is_initialized:
                parts = [part.new_zeros(*part.shape[:2], num_columns, part.shape[3]) for part in layer.filled()]
                for part, filled in zip(parts, layer.filled(), strict=True):
                    for lane, row in enumerate(self.rows):
                        part[row, :, padding[row] :] = filled[lane, :, : num_columns - padding[row]]
                stored.update(*parts, index)
        return stored
