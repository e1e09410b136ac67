"""Decode batches of prompts under all settings in turn; compare and record each call at once."""

import math
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StopStringCriteria

from ..call.attached import attached_to
from ..call.checks import check_source
from ..call.configuration import SpeculativeConfig, first_given, setting_of
from ..call.preparation import prepare
from ..call.prompts import padded
from ..call.statistics import RowStatistics, Statistics
from ..drafting.source import DraftSource
from ..generation import generate, generate_rounds
from ..models import device_of
from ..models.model_state import alone
from ..sampling.copying import clone
from ..tokenizers.chat import ids_of
from ..types import Round
from .calls import Decoded, Rival, all_rounds, peak_of, timed_generate
from .journal import BadRow, Call, Difference, Failure, Journal, Row
from .settings import NamedDraft, Setting

#: fields of a generation config about the draft length
LENGTHS = ("num_assistant_tokens", "num_assistant_tokens_schedule")
#: new tokens of a warm-up
FEW = 8


@dataclass
class Decoder:
    """Decode batches with a target and its drafts.

    Attributes:
        tokenizer: `None`: results have ids without texts.
        kwargs: keywords of every `generate`, as `settings_of_rows` gives them.
        seed: batch b is sampled with seed + b under every setting.
        rivals: by name.
        forgets: sources keep nothing from call to call, since prompts are repeated.
        is_brief: warm-ups are short although prompts are repeated, since nothing is compiled.
        kept: for each setting, what its sources keep from call to call.
    """

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    drafts: Mapping[str, NamedDraft]
    kwargs: dict[str, Any]
    seed: int
    rivals: Mapping[str, Rival] = field(default_factory=dict)
    forgets: bool = False
    is_brief: bool = False
    kept: dict[Setting, dict] = field(default_factory=dict)

    def check(self, setting: Setting) -> None:
        """Refuse a setting that cannot work, before the first forward.

        Raises:
            ValueError, TypeError: as `generate`.
        """
        if setting.is_ours:
            check_source(self._source(setting), self.target)
            prepare(self.target, self._kwargs(setting), *attached_to(self.target))

    def warm_up(self, setting: Setting, prompts: list[list[int]]) -> None:
        """Do what only a first call does, such as measuring costs and taking memory. A setting that cannot work raises here.

        Where prompts are repeated, it decodes to the end unless `is_brief`: compiled passes may depend on the length.
        """
        lengths = () if self.forgets and not self.is_brief else ("max_new_tokens", "min_new_tokens")
        few = {name: min(FEW, self.kwargs[name]) for name in lengths if self.kwargs.get(name) is not None}
        call = self._inputs(prompts) | self._kwargs(setting) | few
        with self._alone(0):
            if setting.is_ours:
                generate(self.target, **call)
            else:
                self._without_us(setting, call)

    def decode(self, setting: Setting, batch: int, indices: list[int], prompts: list[list[int]]) -> Call:
        """Decode the prompts under the setting, timed."""
        call = self._inputs(prompts) | self._kwargs(setting)
        with self._alone(batch, setting), peak_of(self.target) as peak_bytes:
            if setting.is_ours:
                found, counts, decoded, ends = all_rounds(self.target, call)
                rows = list(map(self._row, indices, found.new_tokens, found.acceptance_prob, counts.rows, ends))
            else:
                counts, decoded = None, self._without_us(setting, call)
                rows = [self._plain_row(*one, decoded) for one in zip(indices, decoded.new_ids, prompts, strict=True)]
        first = decoded.first_seconds, decoded.num_first_tokens
        passes = None if setting.rival is None else decoded.num_target_passes
        return Call(setting.name, batch, decoded.seconds, rows, counts, *first, passes, *peak_bytes)

    def _without_us(self, setting: Setting, call: dict[str, Any]) -> Decoded:
        stops = self._given("stop_strings")
        of_strings = [] if stops is None else [StopStringCriteria(self.tokenizer, stops)]
        criteria = [*(call.get("stopping_criteria") or ()), *of_strings]
        call |= {"stopping_criteria": criteria, "stop_strings": None}
        if setting.rival is not None:
            return self.rivals[setting.rival].decode(call)
        return timed_generate(partial(generate, self.target), self.target, call)

    def rounds(self, setting: Setting, batch: int, prompts: list[list[int]]) -> Generator[tuple[Round, Statistics], None, None]:
        """Decode with a draft, one round at a time."""
        with self._alone(batch, setting):
            yield from generate_rounds(self.target, **self._inputs(prompts), **self._kwargs(setting))

    def plain_arrivals(self, setting: Setting, prompt: list[int]) -> list[tuple[int, float]]:
        """Decode plainly under a setting's options; each token with the seconds until it came."""
        with self._alone(0):
            decoded = self._without_us(setting.baseline, self._inputs([prompt]) | self._kwargs(setting.baseline))
        times = (seconds for _, seconds in decoded.steps)
        return list(zip(decoded.new_ids[0], times, strict=True))

    def difference(self, setting: Setting, prompt: list[int], plain: Row, other: Row) -> Difference:
        """Find where `other` differs from `plain` first, and the gap of the target's two best logits there."""
        pairs = zip(plain.new_ids, other.new_ids, strict=False)
        shorter = min(len(plain.new_ids), len(other.new_ids))
        position = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
        before = plain.new_ids[:position]
        is_encoder_decoder = self.target.config.is_encoder_decoder
        inputs = self._inputs([prompt if is_encoder_decoder else prompt + before])
        if is_encoder_decoder:
            config = self.target.generation_config
            start = first_given(config.decoder_start_token_id, self.target.config.decoder_start_token_id)
            inputs["decoder_input_ids"] = torch.tensor([[start, *before]], device=device_of(self.target))
        one = {"max_new_tokens": 1, "min_new_tokens": None, "do_sample": False, "draft_model": None}
        one |= {"output_logits": True, "return_dict_in_generate": True}
        try:
            logits = generate(self.target, **inputs, **self._own_kwargs() | one).logits[0][0].float()
            gap = float(-logits.topk(2).values.diff())
        except RuntimeError:  # such as out of memory: the position is known nevertheless
            gap = math.nan
        return Difference(setting.name, plain.index, position, gap if math.isfinite(gap) else None)

    def _kwargs(self, setting: Setting) -> dict[str, Any]:
        if setting.is_plain:
            return self._own_kwargs() | setting.generate_kwargs | {"draft_model": None}
        if setting.rival is not None:
            return self._own_kwargs() | setting.generate_kwargs
        draft = {} if setting.draft is None else self.drafts[setting.draft].generate_kwargs
        return self._own_kwargs() | self._length_of(setting) | setting.generate_kwargs | draft

    def _source(self, setting: Setting) -> DraftSource:
        return setting.source(self.drafts).for_model(self.target)

    def _length_of(self, setting: Setting) -> dict[str, Any]:
        """Keywords that force the draft length of the setting's name, whatever configs and attached settings say."""
        if setting.num_draft_tokens is not None:
            return {"num_assistant_tokens_schedule": "constant"}
        source, config = self._source(setting), attached_to(self.target)[1] or SpeculativeConfig()
        drafts_own = getattr(source.draft_model, "generation_config", None)
        told = [self._given(name) for name in LENGTHS] + [getattr(drafts_own, name, None) for name in LENGTHS]
        is_open = all(value is None for value in (*told, config.num_draft_tokens, config.schedule))
        if is_open and source.takes_guesses:  # which would count as the draft's
            return {"num_assistant_tokens_schedule": "adaptive"}
        if is_open or source.num_draft_tokens is not None:
            return {}  # the source has a number of its own
        longest = first_given(source.max_draft_tokens(self.target), source.most_tokens)
        return {"num_draft_tokens": longest, "num_assistant_tokens_schedule": "adaptive"}

    def _own_kwargs(self) -> dict[str, Any]:
        """The keywords with copies of processors and criteria, whose state must not carry over to the next batch."""
        names = ("logits_processor", "stopping_criteria")
        return self.kwargs | {name: clone(list(self.kwargs[name])) for name in names if self.kwargs.get(name)}

    def _given(self, name: str) -> Any:
        return setting_of(self.target, self.kwargs, name)

    def _inputs(self, prompts: list[list[int]]) -> dict[str, torch.Tensor]:
        ids, mask = padded(prompts, self.kwargs["pad_token_id"], left=not self.target.config.is_encoder_decoder)
        device = device_of(self.target)
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    def _alone(self, batch: int, setting: Setting | None = None):
        """Seed a batch alike under every setting, with what the setting's sources keep, if any; restore both after it."""
        kept = {} if self.forgets or setting is None else self.kept.setdefault(setting, {})
        return alone(self.target, kept, self.seed + batch)

    def _row(self, index: int, ids: list[int], probs: list[float], counts: RowStatistics, seconds: float) -> Row:
        chances = [None if math.isnan(chance) else float(f"{chance:.4f}") for chance in probs]
        return Row(index, ids, self._text(ids), None, chances, counts, seconds)

    def _plain_row(self, index: int, ids: list[int], prompt: list[int], decoded: Decoded) -> Row:
        """A row up to its end token."""
        ends = ids_of(self._given("eos_token_id"))
        ids = ids[: next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))]
        seconds = next((at for num, at in decoded.steps if num >= len(ids)), decoded.seconds)
        return Row(index, ids, self._text(ids), self._text(prompt), seconds=seconds)

    def _text(self, ids: list[int]) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(ids, skip_special_tokens=True)


@dataclass
class Runner:
    """Decode batches under all settings, plain decoding among them, and record each call.

    Attributes:
        repeats: how often each batch is decoded under each setting.
        skip_failing: record a setting that cannot be measured as a failure, and leave it out. Else it raises in the warm-up,
            and makes its batch bad rows later.
        say: is told what comes next.
        count: is called after each call.
    """

    decoder: Decoder
    settings: list[Setting]
    journal: Journal
    repeats: int = 1
    skip_failing: bool = False
    say: Callable[[str], None] = lambda what: None
    count: Callable[[], Any] = lambda: None

    def missing(self, batch: int, indices: list[int]) -> list[tuple[Setting, int]]:
        """The calls of a batch to do: settings and call numbers. None of a batch with a bad row."""
        if not indices or not self.journal.bad_rows.keys().isdisjoint(indices):
            return []
        calls = [(setting, number) for number in self._numbers(batch) for setting in self._turned(number)]
        done, failed = self.journal.calls, self.journal.failures
        return [(one, number) for one, number in calls if (one.name, number) not in done and one.name not in failed]

    def _numbers(self, batch: int) -> range:
        """The numbers of a batch's calls."""
        return range(batch * self.repeats, (batch + 1) * self.repeats)

    def _turned(self, number: int) -> list[Setting]:
        """The settings from another one on for each number, so that none always follows the same other one."""
        first = number % len(self.settings)
        return self.settings[first:] + self.settings[:first]

    def check(self) -> None:
        """Refuse what cannot work, before the first forward.

        Raises:
            ValueError, TypeError: as `generate`; not where failing settings are skipped.
        """
        for setting in self.settings:
            try:
                self.decoder.check(setting)
            except ValueError as error:
                self._skip(setting, error)

    def warm_up(self, setting: Setting, batches: list[list[list[int]]]) -> None:
        """Warm up a setting; one that cannot work raises here. If the first batch fails, others are tried.

        Args:
            batches: one or more. The last one may be smaller, and is warmed up as well: costs and compiled passes depend on
                the size.
        """
        self.say(f"warming up: {setting.name}")
        first, *others = batches
        try:
            try:
                self.decoder.warm_up(setting, first)
                others = [batch for batch in others[-1:] if len(batch) != len(first)]
            except (RuntimeError, IndexError):
                if not others:
                    raise
            for batch in others:
                self.decoder.warm_up(setting, batch)
        except (RuntimeError, ValueError, IndexError) as error:
            self._skip(setting, error)

    def run(self, batch: int, indices: list[int], ids: list[list[int]]) -> None:
        """Decode a batch under every setting, as often as it is repeated, and note where texts differ from plain decoding's."""
        for setting, number in self.missing(batch, indices):
            if setting.name in self.journal.failures:
                continue
            self.say(setting.name)
            try:
                call = self.decoder.decode(setting, number, indices, ids)
            except (ValueError, RuntimeError, IndexError) as error:  # of this batch: the setting was warmed up
                if self.skip_failing and not setting.is_plain:
                    self._skip(setting, error)
                    continue
                for index in indices:
                    self.journal.add(BadRow(index, f"{setting.name}: {_told(error)}"))
                break
            self.journal.add(call)
            self.count()
        for number in self._numbers(batch):
            self._compare(number, ids)

    def _compare(self, number: int, prompts: list[list[int]]) -> None:
        """Record each text that should equal plain decoding's and does not, once."""
        for setting in self.settings:
            call, plain = (self.journal.calls.get((s.name, number)) for s in (setting, setting.baseline))
            if call is None or plain is None or not setting.is_ours or not setting.is_exact:
                continue
            for row, expected, prompt in zip(call.rows, plain.rows, prompts, strict=True):
                if row.new_ids != expected.new_ids and (setting.name, row.index) not in self.journal.differences:
                    self.journal.add(self.decoder.difference(setting, prompt, expected, row))

    def _skip(self, setting: Setting, error: Exception) -> None:
        if setting.is_plain or not self.skip_failing:
            raise error
        self.journal.add(Failure(setting.name, _told(error)))


def _told(error: Exception) -> str:
    return out_of_memory(error) or f"{type(error).__name__}: {error}"


def out_of_memory(error: Exception) -> str | None:
    """Explain an out-of-memory error and what needs less; `None` for another error."""
    found = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    if found is None:
        return None
    return f"out of memory, at an allocation of {found[1]}: decode fewer prompts together, fewer new tokens, or in bfloat16"
