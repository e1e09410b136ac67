"""An EAGLE-3 head goes on from the target's states (Li et al. 2025, arXiv 2503.01840); P-EAGLE (arXiv 2602.01469) at once.

Slot i of the head's cache is the pair of token i + 1 and the target's state of token i. A round begins with a pass over the
pairs that the target's last pass has made known: of each accepted token and of the newest. What the head then adds of
its own, beside states of its own, stands in the slots behind, and the next round writes over it: nothing to roll back.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..forwarding import Forwarded
from ..heads.eagle3 import Eagle3Model
from ..interfaces import Drafter, Sampler
from ..models import CompiledPass, num_logits, pool, reads_length
from ..models.attention import with_folded_attention
from ..models.execution import capture_of, compiled_pass
from ..models.masks import AttentionLayers, Nodes, no_nodes, nodes_of
from ..models.ragged_cache import RaggedCache, fed_places, fed_slots
from ..models.replays import Capture, Replays, ladder, padded, rounded_up
from ..models.traced import MAX_COLUMNS, HeadPass
from ..models.traced_cache import layouts_of_head
from ..tokenizers.vocabulary import is_padding
from ..types import Batch, columns_from, uploaded
from .autoregressive import HeadDrafter
from .source import OF_TARGET, BuildContext, HeadSource

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


class Eagle3(HeadDrafter):
    """Drafts with a head that was trained for the target.

    Args:
        model: the head.
        target_model: the target, whose embeddings it reads where it has none of its own.
        one_pass: the head's, a `HeadPass` compiled ahead of time.
        capture: how to capture its passes, see `Capture`.
    """

    scores_levels = True

    def __init__(self, model: Eagle3Model, target_model, one_pass: CompiledPass | None = None, capture: Capture | None = None):
        self.original, self.model = model, with_folded_attention(model)
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        of_target = target_model.config.get_text_config(decoder=True)
        self.hidden_layers = self.config.layers_read(of_target.num_hidden_layers)
        self.attention, self.num_layers = AttentionLayers(model), len(model.layers)
        self.reads_length = reads_length(model)
        self.cache = self.new_cache()
        embeddings = model.embed_tokens if model.embed_tokens is not None else target_model.get_input_embeddings()
        #: the weights themselves: some targets scale or norm what they look up there, no head does
        self.embeddings: Tensor = embeddings.weight
        self.compiled = None if one_pass is None else CompiledHead(one_pass, model, self.embeddings)
        if capture is not None:
            self.compiled = CapturedHead(Replays(model, capture), self.model, self.embeddings)
        #: width of its logits by the target's ids
        self.num_logits = model.config.transformer_layer_config.vocab_size

    def begin(self, batch: Batch, sampler: Sampler) -> None:
        super().begin(batch, sampler)
        if isinstance(self.compiled, CapturedHead):  # replays read and write where earlier calls did
            self.cache = pool.take(self.original, self.new_cache)
            self.cache.begin(len(batch.rows), limit=batch.max_length)

    def release(self) -> None:
        self.cache.num_rows = 0
        pool.give_back(self.original, self.cache)

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            logits, _, self.states = self.catch_up(batch, 1)
        else:
            logits, _, self.states = self._go_on(batch, self.states, ahead)
        return self.model.over_target(logits[:, 0])

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        assert batch.tree is not None
        # Before the nodes stands what they all follow.
        parents = batch.tree.parents[:, num_nodes - width :].to(self.device) + 1
        before = self.states.gather(1, parents[..., None].expand(-1, -1, self.states.shape[2]))
        logits, _, own = self._go_on(batch, before, num_nodes, nodes_of(batch.tree, self.ends))
        self.states = torch.cat([self.states, own], 1)
        return self.model.over_target(logits)

    def greedy_chain(self, batch: Batch, num_tokens: int, vocab_size: int) -> Tensor | None:
        if self.compiled is None or self.num_logits > vocab_size:
            return None
        _, token, own = self.catch_up(batch, 1)
        chain = [token]
        for ahead in range(1, num_tokens):
            self.attend_to(batch, max(self.host_ends) + ahead, batch.max_length)
            _, token, own = self._pass(token, own, self.ends + (ahead - 1), self.ends, are_drafted=True)
            chain.append(token)
        return torch.cat(chain, 1).to(batch.tokens.device)

    def catch_up(self, batch: Batch, num_last: int) -> Sequence[Tensor]:
        """Read the pairs that are known and not read yet: the last columns, as of `_pass`.

        Args:
            num_last: the number of columns; the tokens and states of all but the first are unknown, see `PEagle`.
        """
        self.read_apart(batch)
        num_unknown, before = num_last - 1, self.seen
        self.host_ends = self.seen = [len(history) - 1 for history in batch.history]
        self.ends = (batch.lengths - batch.padding - 1).to(self.device)
        slots, is_filler = fed_slots(before, self.host_ends, self.device)
        known = slots.masked_fill(is_filler, 0)
        tokens = batch.tokens.gather(1, batch.padding[:, None] + known.to(batch.padding.device) + 1)
        states = self.target.hidden_states(known).to(self.device, self.dtype)
        if num_unknown:
            tokens = torch.cat([tokens, tokens.new_full((len(tokens), num_unknown), self.config.mask_token_id)], 1)
            states = torch.cat([states, self.model.mask_hidden.expand(len(tokens), num_unknown, -1)], 1)
        self.attend_to(batch, max(self.host_ends) + num_unknown, batch.max_length)
        whole = self.attention.need_no_mask(before, self.host_ends)
        return self._pass(tokens, states, slots[:, 0], uploaded(before, self.device), num_last, whole=whole)

    def _go_on(self, batch: Batch, states: Tensor, num_tokens: int, nodes=None) -> Sequence[Tensor]:
        """The last of `num_tokens` draft tokens, each beside the head's own state before it, as of `_pass`."""
        width = states.shape[1]
        self.attend_to(batch, max(self.host_ends) + num_tokens, batch.max_length)
        tokens = batch.tokens.gather(1, columns_from(batch.lengths + (num_tokens - width), width))
        return self._pass(tokens, states, self.ends + (num_tokens - width), self.ends, width, True, nodes)

    def _pass(
        self, ids: Tensor, states: Tensor, first: Tensor, seen: Tensor, num_last=1, are_drafted=False, nodes=None, whole=False
    ) -> Sequence[Tensor]:
        """Logits, tokens and states of the last columns, see `CompiledHead`; `whole` prompts of one length need no mask."""
        self.num_forwards += 1
        if self.compiled is not None:
            found = self.compiled(self.cache, ids, states, first, seen, num_last, are_drafted, nodes)
            if found is not None:
                return found
        spare, tree = first.new_full((len(first), 1), self.cache.capacity - 1), Nodes(*nodes) if nodes else None
        queries, self.cache.slots = fed_places(first, seen, spare, ids.shape[1])
        embeds = embedded(ids, self.embeddings, self.device, self.dtype)
        positions = queries if tree is None else tree.positions(queries)
        mask = None if whole else self.attention.masks(queries, self.cache, tree)
        fused = states if are_drafted else self.model.fuse(states)
        own = self.model(embeds, fused, positions, attention_mask=mask, past_key_values=self.cache)[:, -num_last:]
        logits = self.model.logits(own)
        return logits, self.model.of_target(logits.argmax(-1)), own


class PEagle(Eagle3):
    """A head that was trained to guess several places ahead in one pass: what is not known there is one state and one token."""

    most_tokens = Forwarded("config", "max_draft_tokens")  # type: ignore[assignment]

    greedy_chain = HeadDrafter.greedy_chain  # none: one pass as it is

    def step(self, batch: Batch, ahead: int) -> Tensor:
        if ahead == 0:
            logits, _, _ = self.catch_up(batch, self.num_ahead)
            self.ahead = self.model.over_target(logits)
        return self.ahead[:, ahead]

    def level(self, batch: Batch, num_nodes: int, width: int) -> Tensor:
        assert batch.tree is not None
        return self.ahead[:, batch.tree.depth, None].expand(-1, width, -1)  # whatever is on the way there


class Eagle3Source(HeadSource):
    method = "eagle3"
    kind: ClassVar[type[Eagle3]] = Eagle3
    has_own_passes = True
    scores_levels = True
    config_fields = ("eagle_aux_hidden_state_layer_ids", "norm_before_residual")

    def unsupported_reason(self, config) -> str | None:
        own = self.draft_model.config
        layers = own.layers_read(config.num_hidden_layers)
        fits = min(layers) >= 0 and max(layers) <= config.num_hidden_layers and own.state_size == config.hidden_size
        least = max(own.eagle_aux_hidden_state_layer_ids or [3])
        return None if fits else f"a target of hidden size {own.state_size} with {least} layers or more"

    def check(self, model: PreTrainedModel) -> None:
        super().check(model)
        own, embeddings = self.draft_model.config, model.get_input_embeddings().weight
        size = own.get_text_config(decoder=True).hidden_size
        if not own.has_embed_tokens and embeddings.shape[1] != size:
            lacks = f"{self.name} has no embeddings of its own (embed_tokens.weight), and those of the target"
            raise ValueError(f"`draft_model`: {lacks} are {embeddings.shape[1]} wide where it reads {size}: {OF_TARGET}.")

    def check_ids(self, model: PreTrainedModel) -> None:
        size, own = num_logits(model), self.draft_model.config.get_text_config(decoder=True).vocab_size
        if not is_padding(size, own):
            sizes = f"a vocabulary of {own} entries and the target has {size}, more than padding explains"
            raise ValueError(f"`draft_model`: {self.name} was made for {sizes}: {OF_TARGET}.")

    def drafter_for(self, model: PreTrainedModel, *passes) -> Drafter:
        return self.in_trees(self.kind(self.draft_model, model, *passes))

    def drafter(self, call: BuildContext) -> Drafter:
        draft, execution = self.draft_model, call.execution
        return self.drafter_for(call.model, compiled_pass(draft, execution), capture_of(draft, execution))


class PEagleSource(Eagle3Source):
    """All draft tokens come from one pass."""

    method = "peagle"
    kind = PEagle

    @classmethod
    def takes(cls, value) -> bool:
        return super().takes(value) and value.config.is_parallel

    def max_draft_tokens(self, model: PreTrainedModel) -> int | None:
        return self.draft_model.config.max_draft_tokens
