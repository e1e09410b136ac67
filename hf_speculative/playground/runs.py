"""Decode a prompt plainly and speculatively for the page."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call.configuration import as_keywords
from ..call.option_table import DRAFTS
from ..call.prompts import prompt_ids, settings_of_rows
from ..call.statistics import Statistics
from ..drafting.wrapped import Nothing
from ..generation import generate_rounds
from ..grammar.processor import Walk, with_grammar
from ..models.model_state import alone
from ..schedules import Constant
from ..tokenizers import chat
from ..tokenizers.pieces import Pieces
from ..verification import RULES
from .recording import Recorder, RoundRecord, WatchedLength

#: what the page calls drafts of a model; other methods are named as in `draft_model="suffix"`
DRAFT_MODEL = "draft model"
#: how drafts are judged when sampling: the rules, and the target's own draws with the draft on the same noise
REPRODUCIBLE = "reproducible"
JUDGES = ("block", "token", "sampled", REPRODUCIBLE)


@dataclass(frozen=True)
class Models:
    """A target, its tokenizer, and a draft model if there is one, with its own tokenizer where that is another.

    Attributes:
        method: the way to draft that the page begins with.
    """

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft: PreTrainedModel | None = None
    draft_tokenizer: PreTrainedTokenizerBase | None = None
    method: str | None = None

    @property
    def methods(self) -> list[str]:
        """Ways to draft, the one to begin with first."""
        found = [DRAFT_MODEL] * (self.draft is not None) + list(DRAFTS.methods)
        return found if self.method is None else [self.method, *(name for name in found if name != self.method)]


@dataclass(frozen=True)
class Settings:
    """How a prompt is continued; a temperature of 0 always takes the likeliest token.

    Attributes:
        grammar: the text of a JSON schema or a Lark grammar; empty: none.
    """

    max_new_tokens: int = 96
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    num_draft_tokens: int = 4
    method: str = DRAFT_MODEL
    judge: str = JUDGES[0]
    grammar: str = ""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def rule(self) -> str:
        """The name of the rule that judges. A guess that is not drawn by chance is kept as often as can be by `sampled`."""
        is_drawn = self.method == DRAFT_MODEL and not self.is_greedy and self.judge != REPRODUCIBLE
        return self.judge if is_drawn else "sampled"

    def keywords(self, models: Models) -> dict[str, Any]:
        """Of plain and speculative `generate` alike."""
        given: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "repetition_penalty": self.repetition_penalty}
        if self.grammar.strip():
            given["grammar"] = f"{self.grammar}\n"  # never read as the name of a file
        given = settings_of_rows(models.target, models.tokenizer, given)
        if self.is_greedy:
            return given | {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        return given | {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p}

    def sampling(self, target: PreTrainedModel, reproducible: bool) -> dict[str, Any]:
        """The settings of drawing tokens, from a generator of their own; greedy decoding has none."""
        generator = torch.Generator(target.device).manual_seed(self.seed)
        return {} if self.is_greedy else {"reproducible": reproducible, "generator": generator}

    def drafting(self, models: Models) -> tuple[dict[str, Any], Recorder]:
        """The keywords that ask for drafts, and who records what they come to."""
        rule, length = RULES[self.rule](), None
        own = self.sampling(models.target, self.judge == REPRODUCIBLE)
        own["draft_model"] = models.draft if self.method == DRAFT_MODEL else self.method
        if self.method == DRAFT_MODEL and models.draft_tokenizer is not None:
            own["draft_tokenizer"] = models.draft_tokenizer
        elif self.method == DRAFT_MODEL and not rule.reads_draft_probs:  # scores of other tokens cannot be watched
            length = WatchedLength(self.num_draft_tokens)
        own |= {"num_draft_tokens": self.num_draft_tokens} if length is None else {"schedule": length}
        recorder = Recorder(self.rule, rule, length, self.is_greedy)
        return as_keywords(own | {"rule": recorder}), recorder


@dataclass(frozen=True)
class Shown:
    """A token of a text: what it adds, and the round that brought it with its index there, if a round did.

    Attributes:
        is_forced: it was drafted, and the grammar allowed no other text there.
    """

    text: str
    is_from_draft: bool = False
    is_forced: bool = False
    round: int | None = None
    index: int = 0


@dataclass
class Column:
    """One of the two texts.

    Attributes:
        walk: through the call's grammar, if it has one.
        tokens: so far, and `ids` the same as the target knows them.
        times: after each pass of the target, the seconds since the start and the number of tokens by then.
    """

    pieces: Pieces
    walk: Walk | None = None
    tokens: list[Shown] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.times[-1][0] if self.times else 0.0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return len(self.ids) / self.seconds if self.seconds else 0.0

    def add(self, tokens: list[int], seconds: float, num_from_draft: int = 0, round: int | None = None) -> None:
        for index, token in enumerate(tokens):
            is_draft = index < num_from_draft
            is_forced = is_draft and self.walk is not None and self.walk.forced(self.ids, ())[:1] == [token]
            self.ids.append(token)
            self.tokens.append(Shown(self.pieces.add(token, False), is_draft, is_forced, round, index))
        self.times.append((seconds, len(self.ids)))


@dataclass
class Run:
    """Both texts as far as they are, and the rounds of the speculative one.

    Attributes:
        is_done: both have ended.
    """

    settings: Settings
    prompt: str
    plain: Column
    own: Column
    rounds: list[RoundRecord]
    statistics: Statistics = field(default_factory=Statistics)
    is_done: bool = False


def run(models: Models, settings: Settings, prompt: str, as_chat: bool = False) -> Generator[Run, None, None]:
    """Decode both ways in turns; yields what there is after each pass of the target.

    Args:
        as_chat: the prompt is a user's message for the tokenizer's chat template.

    Raises:
        ValueError, TypeError: before the first forward, as `generate`.
    """
    target, tokenizer, raw = models.target, models.tokenizer, not as_chat
    ids = prompt_ids(chat.as_chat(prompt, tokenizer, raw), 0, target, tokenizer)
    given = torch.tensor([ids], device=target.device)
    keywords = {"input_ids": given, "attention_mask": torch.ones_like(given)} | settings.keywords(models)
    keywords |= chat.chat_keywords(target, tokenizer, raw)
    drafting, recorder = settings.drafting(models)
    # Plain decoding is rounds of nothing, so that it can wait: not even what a grammar forces is drafted.
    plainly = as_keywords({"draft_model": Nothing(), "schedule": Constant(0)} | settings.sampling(target, reproducible=True))
    ways = (generate_rounds(target, **keywords, **plainly), generate_rounds(target, **keywords, **drafting))
    decode = partial(tokenizer.decode, skip_special_tokens=as_chat)
    plain, own = (Column(Pieces(decode, before=ids)) for _ in ways)
    if "grammar" in keywords:
        processors = with_grammar(target, {}, keywords["grammar"], tokenizer)["logits_processor"]
        own.walk = Walk(processors[-1].grammars[0])
    shown = Run(settings, prompt, plain, own, recorder.rounds)
    with alone(target, {}, settings.seed), closing(in_turns(ways)) as steps:
        for number, seconds, step in steps:
            round, counts = step
            if number == 0:
                plain.add(round.tokens[0], seconds)
            else:
                shown.statistics = counts
                recorder.follow(round)
                own.add(round.tokens[0], seconds, round.num_from_draft[0], len(recorder.rounds) - 1)
            yield shown
    shown.is_done = True
    yield shown


def in_turns(runs: Sequence[Generator[Any, Any, Any]]) -> Generator[tuple[int, float, Any], None, None]:
    """The steps of all runs, each with its run's number, and the seconds that the run's own steps took so far.

    The next step is always made by the run that has had least time. Closing it early closes them.
    """
    seconds, running = [0.0] * len(runs), list(range(len(runs)))
    try:
        while running:
            number = min(running, key=lambda n: seconds[n])
            start = time.perf_counter()
            step = next(runs[number], None)
            seconds[number] += time.perf_counter() - start
            if step is None:
                running.remove(number)
            else:
                yield number, seconds[number], step
    finally:
        for run in runs:
            run.close()
