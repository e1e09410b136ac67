"""The universal path: any model that transformers' `generate` runs, through transformers' own cache.

Every pass is prepared by the model's own `prepare_inputs_for_generation`, the prompt's by transformers' own prefill, so that
a model gets what it gets in plain `generate`: columns, masks, positions, images at the prompt only, encoder outputs.

Such a cache has one length for all rows. Rows of a batch accept different numbers of tokens, so the cache goes back to the
shortest row, and the others feed again what they had more: right filler is invisible to what stands left of it. Rows far ahead
draft nothing until the others have caught up (`schedules.AlignRows`), which bounds what is fed twice.
"""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CacheLayerMixin, PreTrainedModel
from transformers.utils import ModelOutput

from ..hf_compat import cache_argument, prefill, updated_kwargs
from ..interfaces import CachedModel
from ..types import Batch, uploaded
from .cached_model import device_of, image_layers, last_id, num_cached_of_image
from .inputs import Inputs, note_positions, text_inputs
from .masks import is_recurrent
from .rollback import rewinder
from .shallow import install_capturing_hooks
from .stepped import with_stepped_mixers


class UniversalModel(CachedModel):
    """A model with transformers' own cache, of any kind that can be taken back.

    Args:
        inputs: the call as the model's own `generate` prepared it.
        clamp_ids: read ids past the embedding table as its last one, instead of failing.
        keep: names of outputs to keep after each pass (`hidden_states`, `attentions`, ...), see `step_output`.
    """

    keeps_rows_together = True

    def __init__(self, model: PreTrainedModel, inputs: Inputs, clamp_ids: bool = False, keep: tuple[str, ...] = ()):
        if keep and is_recurrent(model):
            install_capturing_hooks(model)
        self.original, self.model = model, with_stepped_mixers(model)
        self.inputs, self.keep = inputs, keep
        self.last_id = last_id(model) if clamp_ids else None
        self.reset()

    def reset(self) -> None:
        self.ids = self.inputs.input_ids.long().clone()
        self.rows, self.width = list(range(len(self.ids))), self.ids.shape[1]
        self._begin()

    def _begin(self) -> None:
        """An empty cache."""
        self.kwargs = self.inputs.fresh_kwargs(self.model)
        self.covered = 0  # columns in the cache, all of them right for every running row
        self.has_prompt = False  # later: there is a rewinder, with a cache

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        """All rows are fed the same columns, from the shortest row's on to the longest one's; each takes its own logits."""
        ends = [length + ahead for length in batch.host_lengths]
        # A row near the end may be fed beyond it, because others draft further: nothing reads that, and no position is there.
        start, end = min(ends) - num_last, min(max(ends), batch.max_length)
        self._read(batch)
        self._go_back(start)
        logits = self._feed_from(start, end, num_committed=min(batch.host_lengths))
        first = end - logits.shape[1]  # the column of the first logits
        if len(self.rows) < len(logits):
            logits = logits[uploaded(self.rows, logits.device)]
        return _last_before([column - first for column in ends], logits.to(batch.tokens.device), num_last)

    def _feed_from(self, start: int, end: int, num_committed: int) -> Tensor:
        """Feed what the cache lacks up to `end`; logits `(rows, columns, vocab)` of the columns from `start` on, or earlier.

        Args:
            num_committed: columns that every row keeps whatever becomes of its draft.
        """
        of_prompt = None if self.has_prompt else self._prefill()
        if start - self.covered > self.rewinder.max_replay > 0:
            self._feed(start, num_logits=1)
        if self.covered >= end:
            assert of_prompt is not None  # the newest token of some row has not been fed
            return of_prompt
        if end > num_committed >= self.covered > self.rewinder.column:
            self.rewinder.mark(self.covered)
        logits = self._feed(end, num_logits=end - start)
        # Asked for what stands at the prompt's end as well: those logits came with the prompt.
        return logits if of_prompt is None or start >= self.width else torch.cat([of_prompt, logits], 1)

    def prefill(self, batch: Batch) -> None:
        """`num_return_sequences` finds the prompts repeated already, as plain `generate` reads them."""

    def rollback(self, batch: Batch) -> None:
        if self.has_prompt:
            self._read(batch)
            self._go_back(min(batch.host_lengths) - 1)

    def select(self, indices: list[int]) -> None:
        """Rows that are done stay in the cache, as in plain `generate`."""
        self.rows = [self.rows[i] for i in indices]

    def load(self, cache, batch: Batch) -> None:
        """Nothing to do: the cache is among the inputs."""

    def store(self, given, sequences: Tensor, padding: list[int], lengths: list[int]):
        # A stop inside a block and rows that were done early leave columns that are not those of the final text.
        last = sequences.shape[1] - 1
        self._go_back(min(self.covered, min(lengths) - 1))
        self.ids = sequences.clone()
        if not self.has_prompt:
            self._prefill()
        if self.covered < last:
            self._feed(last, num_logits=1)
        cache = self.rewinder.finish()
        if given is None:
            return cache
        vars(given).update(vars(cache))
        return given

    def step_output(self, name: str, row: int, column: int) -> tuple[Tensor, ...]:
        first, outputs, is_prompt = self.last
        layers, i = outputs[name], column - first
        columns = slice(None) if is_prompt else slice(i, i + 1)  # the prompt's: all of them, as in plain `generate`
        if name.endswith("hidden_states"):
            # `(batch, columns, ...)`, but for Gemma 3n, whose several states a token stand in front; `None` was not asked for.
            own, config = (slice(row, row + 1), columns), self.model.config.get_text_config(decoder=True)
            of_many = (slice(None), *own) if hasattr(config, "altup_num_inputs") else own
            return tuple(layer if layer is None else layer[of_many if layer.ndim == 4 else own] for layer in layers)
        queries = tuple(layer[row : row + 1, :, columns] for layer in layers)
        if is_prompt or name == "cross_attentions" or not queries:  # T5 in older transformers records none
            return queries
        # Plain `generate` shows each step the columns up to its own, a sliding layer the last window of them.
        later, of_image = layers[0].shape[2] - 1 - i, image_layers(self.model)
        return tuple(
            query if layer in of_image else query[..., max(0, end - min(column + 1, window or column + 1)) : end]
            for query, (layer, window) in zip(queries, self._attending(), strict=True)
            for end in [query.shape[3] - later]
        )

    def _attending(self) -> list[tuple[int, int | None]]:
        """The layers that attend, with their windows; one that reads the keys of another of its type has that one's."""
        cache = self.rewinder.cache
        layers = getattr(cache, "self_attention_cache", cache).layers
        types = getattr(self.model.config.get_text_config(decoder=True), "layer_types", None) or range(len(layers))
        windows = {
            kind: getattr(layer, "sliding_window", None)
            for kind, layer in zip(types, layers, strict=False)
            if isinstance(layer, CacheLayerMixin) and layer.is_initialized
        }
        return [(index, windows[kind]) for index, kind in enumerate(types) if kind in windows]

    def _read(self, batch: Batch) -> None:
        """The rows' own tokens; those that are done keep what they had."""
        width = batch.tokens.shape[1]
        if self.ids.shape[1] < width:
            self.ids = functional.pad(self.ids, (0, width - self.ids.shape[1]))
        self.ids[uploaded(self.rows, self.ids.device, torch.long), :width] = batch.tokens.to(self.ids.device)

    def _go_back(self, column: int) -> None:
        """Leave at most `column` columns in the cache; where it cannot go back as far, it begins again."""
        if not self.has_prompt or column > self.covered:
            return
        covered = self.rewinder.take_back(self.covered, column)
        if covered is None:
            self._begin()
        else:
            self.covered, self.kwargs[self.cache_name] = covered, self.rewinder.cache

    def _prefill(self) -> Tensor:
        """The prompt, exactly as plain `generate` reads it."""
        outputs = prefill(self.model, self._input_ids(self.width), self.inputs.generation_config, self.kwargs)
        if self.model is not self.original:
            note_positions(self.model, self.original)
        before = dict(self.kwargs)
        self._update(outputs)
        both = {name: (before.get(name), value) for name, value in self.kwargs.items() if isinstance(value, Tensor)}
        #: what grows by one a token, and along which dimension
        self.grown = {
            name: next(d for d in range(new.ndim) if new.shape[d] != old.shape[d])
            for name, (old, new) in both.items()
            if isinstance(old, Tensor) and old.ndim == new.ndim and old.shape != new.shape
        }
        self.known = self.width + 1  # columns that the growing inputs cover
        self.covered = self.width
        self._record(outputs, first=0, is_prompt=True)
        self.cache_name = cache_argument(self.kwargs)
        self.has_prompt = True
        self.rewinder = rewinder(self.kwargs.get(self.cache_name), self.covered, image_layers(self.model))
        return outputs.logits[:, -1:]

    def position_after_prompt(self) -> Tensor:
        """`(rows,)` positions of the first tokens after the prompt; their columns, where the model's forward counts itself."""
        prepared = self._prepared(self.width + 1)
        positions = prepared.get("position_ids", prepared.get("decoder_position_ids"))
        if positions is None:
            return torch.full((len(self.ids),), self.width)
        while positions.ndim > 2:  # by time, height and width, which are the same for text
            positions = positions[-1]
        return positions[:, -1].expand(len(self.ids))

    def _prepared(self, end: int) -> dict:
        """What the model's forward gets for the columns from `covered` up to `end`."""
        while self.known < end:
            self._update(ModelOutput())
            self.known += 1
        kwargs = dict(self.kwargs)
        for name, dim in self.grown.items():
            kwargs[name] = kwargs[name].narrow(dim, 0, kwargs[name].shape[dim] - (self.known - end))
        ids = functional.pad(self._input_ids(end), (0, max(0, end - self.ids.shape[1])))
        return self.model.prepare_inputs_for_generation(ids, next_sequence_length=end - self.covered, **kwargs)

    def _feed(self, end: int, num_logits: int) -> Tensor:
        """Feed the columns from `covered` up to `end`; logits of the last `num_logits` at least."""
        model_inputs = self._prepared(end)
        self._show_image(model_inputs, num_queries=end - self.covered)
        if model_inputs.get("logits_to_keep") is not None:  # some models set one of their own
            model_inputs["logits_to_keep"] = num_logits
        outputs = self.model(**model_inputs, return_dict=True)
        if outputs.get(self.cache_name) is not None:
            self.kwargs[self.cache_name] = self.rewinder.cache = outputs[self.cache_name]
        self._record(outputs, first=self.covered)
        self.covered = end
        return outputs.logits

    def _show_image(self, model_inputs: dict, num_queries: int) -> None:
        """Where no mask says what is seen of an image, a step sees all of it; several queries without one would not (sdpa)."""
        num_columns = num_cached_of_image(self.model, self.rewinder.cache)
        reader = getattr(getattr(self.model, "model", None), "vision_model", None)
        if num_queries > 1 and num_columns and reader and model_inputs.get("cross_attention_mask") is None:
            shape = len(self.ids), num_queries, 1, num_columns // reader.num_patches
            model_inputs["cross_attention_mask"] = torch.ones(shape, dtype=torch.long, device=device_of(self.model))

    def _input_ids(self, end: int) -> Tensor:
        ids = self.ids[:, :end].to(device_of(self.model))
        return ids if self.last_id is None else ids.clamp(max=self.last_id)

    def _update(self, outputs) -> None:
        is_encoder_decoder = self.model.config.is_encoder_decoder
        self.kwargs = updated_kwargs(self.model, outputs, dict(self.kwargs), is_encoder_decoder=is_encoder_decoder)

    def _record(self, outputs, first: int, is_prompt: bool = False) -> None:
        self.num_forwards += 1
        if self.keep:
            kept = {name: outputs[name] for name in self.keep if outputs.get(name) is not None}
            self.last = (first, kept, is_prompt)


def _last_before(ends: list[int], logits: Tensor, num_last: int) -> Tensor:
    """`(batch, num_last, vocab)`: of each row of `logits (batch, columns, vocab)` those in front of its own end."""
    if min(ends) == max(ends):
        return logits[:, -num_last:]
    columns = uploaded(ends, logits.device)[:, None] - num_last
    columns = (columns + torch.arange(num_last, device=logits.device)).clamp(max=logits.shape[1] - 1)
    return logits.gather(1, columns[..., None].expand(-1, -1, logits.shape[2]))


class TextModel(UniversalModel):
    """A decoder-only model on the universal path that reads the batch it is first asked about, not the target's prompt."""

    def __init__(self, model: PreTrainedModel):
        super().__init__(model, None)  # type: ignore[arg-type]  # prepared with the first batch

    def reset(self) -> None:
        self.is_waiting, self.has_prompt = True, False

    def logits(self, batch: Batch, ahead: int, num_last: int) -> Tensor:
        if self.is_waiting:
            self.inputs, self.is_waiting = text_inputs(self.model, batch), False
            super().reset()
        return super().logits(batch, ahead, num_last)

    def select(self, indices: list[int]) -> None:
        if not self.is_waiting:
            super().select(indices)
