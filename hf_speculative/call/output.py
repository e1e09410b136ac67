"""Make what `generate` returns and streams from `Round`s; the loop does not know of it."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ..hf_compat import CACHE, pad_token
from ..interfaces import CachedModel, Stopping
from ..models import Inputs
from ..types import Round
from .statistics import Statistics


class Speculation:
    """Attributes of outputs beside transformers' fields; no fields themselves, since pipelines and Whisper pass these on.

    Attributes:
        from_draft: `(batch, new)` bool, which of the new tokens the draft had guessed.
        acceptance_prob: `(batch, new)` float, with what chance, given the draft, such a token was kept along with those before
            it; nan for the target's own tokens and after the end of a row.
        statistics: those of the call.
    """

    from_draft: Tensor | None = None
    acceptance_prob: Tensor | None = None
    statistics: Statistics | None = None


class GenerateSpeculativeOutput(GenerateDecoderOnlyOutput, Speculation):
    """transformers' `GenerateDecoderOnlyOutput`, with `from_draft`, `acceptance_prob` and `statistics` as attributes.

    `scores` and `logits` have one `(batch, vocab)` entry a step, as in plain `generate`; a row that is done is 0 there.
    `past_key_values` has read all columns of `sequences` but the last, as in plain `generate`, the pad tokens after the end of
    a row included: pass it with a longer text, and its mask, to go on.
    """


class GenerateSpeculativeEncoderDecoderOutput(GenerateEncoderDecoderOutput, Speculation):
    """The same for an encoder-decoder model."""


def output_names(model: PreTrainedModel, config: GenerationConfig) -> tuple[str, ...]:
    """The model's outputs that the call asks for, by the model's names."""
    if not config.return_dict_in_generate:
        return ()
    names: dict[str, tuple[str, ...]] = {"hidden_states": ("hidden_states",), "attentions": ("attentions",)}
    if model.config.is_encoder_decoder:
        names = {"hidden_states": ("decoder_hidden_states",), "attentions": ("decoder_attentions", "cross_attentions")}
    return tuple(name for option, group in names.items() if getattr(config, f"output_{option}") for name in group)


class Rows:
    """The rows of one call, gathered from its rounds.

    Attributes:
        new_tokens: of each row.
        acceptance_prob: for each of them `Verdict.acceptance_prob`, nan for the target's own.
    """

    def __init__(self, num_rows: int):
        self.new_tokens: list[list[int]] = [[] for _ in range(num_rows)]
        self.acceptance_prob: list[list[float]] = [[] for _ in range(num_rows)]

    def follow(self, round: Round) -> None:
        found = zip(round.rows, round.tokens, round.num_from_draft, round.acceptance_prob, strict=True)
        for row, tokens, num, chances in found:
            self.new_tokens[row] += tokens
            self.acceptance_prob[row] += chances[:num] + [math.nan] * (len(tokens) - num)


class Output(Rows):
    """Collects the rounds of one call.

    Args:
        input_ids: `(batch, width)` the prompt as given, returned in front of the new tokens.
        target: keeps the hidden states and attentions of its last pass, if any are asked for.
        stopping: says where the call ends, if rows go on beyond their own stop.
        streamer: gets one token a row at a time, in order, and nothing past a stop.
    """

    def __init__(self, input_ids: Tensor, config: GenerationConfig, target: CachedModel, stopping: Stopping, streamer):
        self.input_ids, self.target, self.stopping, self.streamer = input_ids, target, stopping, streamer
        pad = pad_token(config)
        self.pad = 0 if pad is None else int(pad)  # without one all rows end together, see checks.check_generation
        batch_size = input_ids.shape[0]
        super().__init__(batch_size)
        self.running = set(range(batch_size))
        self.num_streamed = 0
        asked = [name for name in ("scores", "logits") if config.return_dict_in_generate and getattr(config, f"output_{name}")]
        self.kept: dict[str, list[list[Tensor]]] = {name: [[] for _ in range(batch_size)] for name in asked}
        self.kept_layers: dict[str, list[list[tuple]]] = {name: [[] for _ in range(batch_size)] for name in target.keep}

    def follow(self, round: Round) -> None:
        found = {name: getattr(round, name) for name in self.kept}
        for b, row in enumerate(round.rows):
            newest = self.input_ids.shape[1] + len(self.new_tokens[row]) - 1  # the column the first of them came from
            for name, rows in self.kept_layers.items():
                rows[row] += [self.target.step_output(name, row, newest + i) for i in range(len(round.tokens[b]))]
            for name, rows in self.kept.items():
                # Copied, so that one row does not keep the whole round's tensor.
                steps = found[name][b, : len(round.tokens[b])].to(torch.float32, copy=True)
                rows[row] += steps.unbind(0)
            if round.done[b]:
                self.running.discard(row)
        super().follow(round)
        if self.streamer is not None:
            self._stream()

    def sequences(self) -> Tensor:
        """`(batch, width + new)`: prompt, new tokens, pad tokens after the end of rows that stopped earlier."""
        new = torch.tensor(self._filled(self.new_tokens, self.pad), dtype=torch.long, device=self.input_ids.device)
        return torch.cat([self.input_ids, new.view(len(new), -1)], 1)

    def as_dict(
        self, inputs: Inputs, cache, statistics: Statistics
    ) -> GenerateSpeculativeOutput | GenerateSpeculativeEncoderDecoderOutput:
        """The output under `return_dict_in_generate=True`."""
        fields: dict[str, Any] = {"sequences": self.sequences(), CACHE: cache}
        fields |= {name: self._steps(name) for name in self.kept}
        fields |= {name: self._layers(name) for name in self.kept_layers}
        kind: type = GenerateSpeculativeOutput
        if not inputs.is_decoder and (encoder := inputs.model_kwargs.get("encoder_outputs")) is not None:
            kind, config = GenerateSpeculativeEncoderDecoderOutput, inputs.generation_config
            asked = [name for name in ("hidden_states", "attentions") if getattr(config, f"output_{name}")]
            fields |= {f"encoder_{name}": encoder.get(name) for name in asked}
        result = kind(**fields)
        acceptance_prob = self._filled(self.acceptance_prob, math.nan)
        result.acceptance_prob = torch.tensor(acceptance_prob, dtype=torch.float, device=self.input_ids.device)
        result.from_draft, result.statistics = ~result.acceptance_prob.isnan(), statistics
        return result

    @property
    def lengths(self) -> list[int]:
        """Columns of each row up to its own end, the prompt's included."""
        width, longest = self.input_ids.shape[1], self._longest()
        return [width + min(len(tokens), longest) for tokens in self.new_tokens]

    def _filled(self, rows: list[list], filler: float) -> list[list]:
        """What there is of each new token, up to the end of the longest row."""
        longest = self._longest()
        return [row[:longest] + [filler] * (longest - len(row)) for row in rows]

    def _steps(self, name: str) -> tuple[Tensor, ...]:
        """The kept `scores` or `logits`, one `(batch, vocab)` tensor a step; 0 for rows that are done."""
        longest = self._longest()
        return pad_sequence([torch.stack(steps[:longest]) for steps in self.kept[name]]).unbind(0)

    def _layers(self, name: str) -> tuple[tuple[Tensor, ...], ...]:
        """The kept `hidden_states` or `attentions`: a step's layers, `(batch, ...)` each; 0 for rows that are done."""
        longest = self._longest()
        rows = [steps[:longest] for steps in self.kept_layers[name]]
        first = max(rows, key=len)

        def of_step(i: int, j: int, like: Tensor | None) -> Tensor | None:
            if like is None:  # of a layer that was not asked for
                return None
            found = [row[i][j] if i < len(row) else torch.zeros_like(like) for row in rows]
            # Each is of one row, in the first dimension but for Gemma 3n, which has several states a token in front.
            return torch.cat(found, like.shape.index(1))

        return tuple(tuple(of_step(i, j, like) for j, like in enumerate(layers)) for i, layers in enumerate(first))

    def _longest(self) -> int:
        """New tokens of the longest row, as far as they are the call's."""
        longest = max(len(tokens) for tokens in self.new_tokens)
        return longest if self.stopping.end is None else min(longest, self.stopping.end - self.input_ids.shape[1])

    def _stream(self) -> None:
        """Pass on every step that all running rows have reached; plain `generate` streams a whole batch a step, too."""
        ready = min([self._longest(), *(len(self.new_tokens[row]) for row in self.running)])
        for step in range(self.num_streamed, ready):
            column = [tokens[step] if step < len(tokens) else self.pad for tokens in self.new_tokens]
            self.streamer.put(torch.tensor(column))
        self.num_streamed = max(self.num_streamed, ready)
