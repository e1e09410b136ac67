"""An EAGLE-3 head's own passes, from a file that was compiled ahead of time, or captured."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..heads.eagle3 import Eagle3Model
from ..models import AttentionLayers, RaggedCache, no_nodes
from ..models.replays import Replays, ladder, padded, rounded_up
from ..models.traced import MAX_COLUMNS, HeadPass
from ..models.traced_cache import layouts_of_head

#: columns of captured passes; wider ones read prompts
WIDEST = 64


class CompiledHead:
    """Runs a head's `HeadPass`.

    Args:
        run: the file's.
        model: the head.
        embeddings: the weights of the embeddings that it reads.
    """

    def __init__(self, run: Callable[[list[Tensor]], list[Tensor]], model: Eagle3Model, embeddings: Tensor):
        self.run, self.layouts, self.embeddings = run, layouts_of_head(AttentionLayers(model)), embeddings
        self.sizes = model.fc.in_features, model.fc.out_features
        self.dtype, self.device = model.dtype, model.device
        is_like = (embeddings.dtype, embeddings.device) == (self.dtype, self.device)
        self.takes_table = is_like and embeddings.is_contiguous()
        #: what a pass is told of the cache's slots: all of them, and the last one
        self.slots = self.bounds = torch.empty(0, dtype=torch.long)

    def __call__(
        self,
        cache: RaggedCache,
        tokens: Tensor,
        states: Tensor,
        first: Tensor,
        seen: Tensor,
        num_last: int = 1,
        are_drafted: bool = False,
        nodes: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> list[Tensor] | None:
        """Logits, tokens and states of the last columns, as `HeadPass` gives them; `None`: it is too wide, and has to run
        eagerly.

        Args:
            cache: the head's, with room for all columns.
            tokens, states: of the columns; the states are the target's or, if the tokens `are_drafted`, the head's own.
            first: `(batch,)`, the slot of each row's first column; columns below `seen (batch,)` are filler.
            nodes: of a tree, as `Nodes` takes them.
        """
        num_rows, width = tokens.shape
        if width > MAX_COLUMNS:
            return None
        caches = cache.tensors(num_rows, self.layouts, states.dtype, states.device)
        if (len(self.slots), len(self.bounds)) != (cache.capacity, num_rows):  # not in each step
            self.slots = torch.arange(cache.capacity, device=self.device)
            self.bounds = torch.full((num_rows, 3), cache.capacity - 1, device=self.device)
        slots, columns = self.slots[: cache.end], self.slots[width - num_last : width]
        ids, table = tokens.to(self.device), self.embeddings
        if not self.takes_table:
            table = embedded(tokens, self.embeddings, self.device, self.dtype).flatten(0, 1)
            ids = torch.arange(tokens.numel(), device=self.device).view_as(tokens)
        fed = [ids, states.contiguous()]
        of_others = [ids.new_empty(num_rows, 0), states.new_empty(num_rows, 0, self.sizes[not are_drafted])]
        pairs = of_others + fed if are_drafted else fed + of_others
        nodes = nodes or no_nodes(num_rows, cache.end, self.device)
        places = [first.contiguous(), seen, self.bounds, slots, *nodes, columns]
        return self._found(cache, [*pairs, *places, table, *caches])

    def _found(self, cache: RaggedCache, inputs: list[Tensor]) -> list[Tensor]:
        return self.run(inputs)


class CapturedHead(CompiledHead):
    """The same on the head itself, by replays of few kinds: columns, nodes and slots are rounded up.

    Args:
        replays: of the head.
    """

    def __init__(self, replays: Replays, model: Eagle3Model, embeddings: Tensor):
        self.replays, self.one_pass = replays, HeadPass(model)
        super().__init__(lambda inputs: list(self.one_pass(*inputs)), model, embeddings)

    def __call__(self, cache, tokens, states, first, seen, num_last=1, are_drafted=False, nodes=None):
        if tokens.shape[1] > WIDEST:
            return None
        more, end = rounded_up(tokens.shape[1]) - tokens.shape[1], ladder(cache.end)
        cache.reserve(len(tokens), end, limit=end)
        cache.end, nodes = end, nodes if nodes is None else padded(nodes)
        seen = torch.maximum(seen, first)  # what is added in front is filler
        tokens, states = functional.pad(tokens, (more, 0)), functional.pad(states, (0, 0, more, 0))
        return super().__call__(cache, tokens, states, first - more, seen, num_last, are_drafted, nodes)

    def _found(self, cache: RaggedCache, inputs: list[Tensor]) -> list[Tensor]:
        num_given = len(inputs) - self.one_pass.num_tensors - self.takes_table  # the others stay where they are
        given, fixed = inputs[:num_given], inputs[num_given:]
        kind = "head", self.takes_table and fixed[0].data_ptr()
        found = self.replays(cache, lambda *tensors: self.run([*tensors, *fixed]), tuple(given), kind)
        return [part.clone() for part in found]


def embedded(tokens: Tensor, embeddings: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`(batch, n, hidden)` of `tokens (batch, n)`; a target may have padded its vocabulary beyond the head's embeddings."""
    ids = tokens.to(embeddings.device).clamp(max=len(embeddings) - 1)
    return functional.embedding(ids, embeddings).to(device, dtype)
