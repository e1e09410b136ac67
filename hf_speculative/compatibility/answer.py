"""The function `check`: whether a pair works together, by which paths, and whether it is worth it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.prompts import check_prompts, prompt_ids
from ..call.sources import source_of
from ..call.statistics import without_nan
from ..command.prompts import built_in_prompts
from ..drafting.source import DraftSource
from ..measuring.results import FEWEST_TOKENS, Evaluation
from ..measuring.settings import NamedDraft, Setting
from ..models import num_parameters
from ..tokenizers.chat import as_chat, chat_keywords, speaks_chat
from ..tokenizers.loading import tokenizer_beside
from ..tokenizers.vocabulary import VocabularyMatch
from .defaults import BATCH_SIZES, SECONDS
from .doctor import Examination, Reading, other_readings
from .fit import ModelReport, notes_on, report_of
from .running import candidates, of_draft, short_evaluation, temperatures


@dataclass(frozen=True)
class Advice:
    """What `check(measure=True)` advises.

    Attributes:
        evaluations: by batch size, each source greedy and sampled.
        parameters: of the target, and of the draft if one was given.
        examination: of a head that was given and whose first tokens are seldom kept.
    """

    evaluations: Mapping[int, Evaluation]
    parameters: dict[str, int]
    examination: Examination | None = None

    def pays_at(self, batch_size: int) -> bool | None:
        """Some source is clearly faster than plain decoding, greedy or sampled; `None` if it is too close to tell."""
        evaluation = self.evaluations[batch_size]
        found = evaluation.recommendations
        if not found and any(map(evaluation.is_too_short, evaluation.settings)):
            return None
        if any(recommendation.is_gain for recommendation in found):
            return True
        return None if any(recommendation.setting is None for recommendation in found) else False

    @property
    def is_worth_it(self) -> bool | None:
        """So at some batch size."""
        answers = [self.pays_at(size) for size in self.evaluations]
        return True if True in answers else None if None in answers else False

    @property
    def verdict(self) -> str:
        """The advice in a few sentences: worth it or not, and with what."""
        told = [self._about(size, t) for size, evaluation in self.evaluations.items() for t in evaluation.temperatures]
        about_head = [] if self.examination is None else [self.examination.verdict]
        return " ".join([self._answer(), *told, *about_head])

    def _answer(self) -> str:
        answers = {size: self.pays_at(size) for size in self.evaluations}
        if len({*answers.values()}) == 1:
            whole = {True: "Worth it.", False: "Not worth it: decode plainly.", None: "Too close to tell."}
            return whole[self.is_worth_it]
        said = {True: "worth it", False: "not worth it", None: "too close to tell"}
        return ", ".join(f"{said[answer]} at batch {size}" for size, answer in answers.items()).capitalize() + "."

    def _about(self, batch_size: int, temperature: float) -> str:
        evaluation, decoding = self.evaluations[batch_size], "Sampled" if temperature else "Greedy"
        size = f" at batch {batch_size}" if len(self.evaluations) > 1 else ""
        told = "no source could be measured."
        if (found := evaluation.recommendation(temperature)) is not None:
            told = found.advice
        elif any(evaluation.is_too_short(s) for s in evaluation.settings if s.temperature == temperature):
            told = f"fewer than {FEWEST_TOKENS} tokens of each source tell nothing: give more `seconds`."
        return f"{decoding}{size}: {told}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        own: dict[str, Any] = {"is_worth_it": self.is_worth_it, "verdict": self.verdict, "parameters": self.parameters}
        own["examination"] = self.examination and self.examination.to_dict()
        return without_nan(own | {"evaluations": [evaluation.to_dict() for evaluation in self.evaluations.values()]})


#: seconds before a bar is shown
BAR_DELAY = 2.0
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of {total:.0f} s"


@dataclass(frozen=True)
class Compatibility:
    """Whether a pair works together; true in a condition if it does.

    Attributes:
        reason: why it does not, or how it does.
        target, draft: what was found out about each model.
        vocabulary: how the vocabularies compare; `None` if no tokenizers were given.
        notes: what looks wrong about the pair by its files.
        advice: whether it is worth it, and with which source of drafts; `None` if nothing was measured.
    """

    is_compatible: bool
    reason: str
    target: ModelReport
    draft: ModelReport | None = None
    vocabulary: VocabularyMatch | None = None
    notes: tuple[str, ...] = ()
    advice: Advice | None = None

    def __bool__(self) -> bool:
        return self.is_compatible

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        fit = asdict(replace(self, advice=None))
        return without_nan(fit | {"advice": self.advice and self.advice.to_dict()})


def check(
    model: PreTrainedModel,
    draft_model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    do_sample: bool = False,
    measure: bool = False,
    seconds: float = SECONDS,
    prompts: Iterable | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    progress: bool = True,
    raw: bool = False,
    grammar: Any = None,
    **example: Any,
) -> Compatibility:
    """Whether `draft_model` can draft for `model`, by which path and vocabulary strategy, and why; and whether it is worth it.

    Each cache is tried: logits of passes over several tokens, with rollbacks in between, are compared with plain ones. With
    `measure=True` every source of drafts that fits is compared with plain decoding on a few short texts, in turn.

    Args:
        draft_model: if left out, only the target is checked, as for prompt lookup.
        tokenizer, draft_tokenizer: those of the two models, if they may differ. Where `measure=True` and they are left out,
            those that lie beside the models.
        do_sample: the strategy for vocabularies that differ depends on it.
        measure: find the source of drafts with the largest speedup: `Compatibility.advice`.
        seconds: to measure in; more seconds give more texts and closer figures. A first batch of texts is always decoded. A
            head that is seldom right takes half of the time again, to be read in other ways than its config says.
        prompts: what the target writes about: texts, messages or ids. Default: some code and some prose. A text is what a
            user says, where the tokenizer has a chat template.
        batch_sizes: how many texts are written side by side. Each number is tried on its own: a draft that pays for one row may
            not pay for many.
        progress: a bar while it is measured, if that takes more than two seconds.
        raw: texts are continued as they are, chat template or not.
        grammar: that texts keep to, as in `generate`: what a schema brings.
        **example: what `model.generate` would get, for a model that takes more than token ids (`input_features=...`).

    Raises:
        TypeError: `model` or `draft_model` is not a transformers model.
        ValueError: the model needs an `example` of its inputs, or `draft_tokenizer` needs a `tokenizer` to compare it with.
            Nothing can be measured, for lack of prompts or since the model takes more than ids.
    """
    if draft_model is not None and not isinstance(draft_model, nn.Module):
        raise TypeError(f"`draft_model` is of type {type(draft_model).__name__}: give a loaded model.")
    target, draft = checks.unwrap(model, "model"), checks.unwrap(draft_model, "draft_model")
    if measure:
        if not seconds > 0:
            raise ValueError(f"`seconds={seconds}` leaves no time to measure: give a number above 0.")
        if not batch_sizes or not all(isinstance(size, int) and size >= 1 for size in batch_sizes):
            raise ValueError(f"`batch_sizes={batch_sizes!r}`: give one or more whole numbers, each 1 or more.")
        if example:
            raise ValueError(f"`measure=True` tries token ids alone, and `{next(iter(example))}` was given: drop one.")
        tokenizer = tokenizer if tokenizer is not None else tokenizer_beside(target)
        if draft_tokenizer is None and tokenizer is not None:
            draft_tokenizer = tokenizer_beside(draft)
    tokenizers = {"tokenizer": tokenizer, "draft_tokenizer": draft_tokenizer}
    answer, source = _fit(target, draft, tokenizers, do_sample, example)
    if not measure or answer.target.path is None:
        return answer
    ids = ids_of_prompts(prompts, target, tokenizer, raw)
    where = "" if draft is None else draft.config.name_or_path
    name = None if source is None or draft is None else (Path(where).name if Path(where).exists() else where) or "draft"
    differs = answer.vocabulary is not None and answer.vocabulary.strategy != "same"
    drafts = {} if name is None else {name: NamedDraft(draft, draft_tokenizer if differs else None)}
    tried = [*(() if name is None else of_draft(name)), *candidates(target)]
    settings = [Setting(temperature=t, **options) for t in temperatures(target) for options in tried]
    sizes = list(dict.fromkeys(batch_sizes))
    examination = None
    with tqdm(total=seconds, delay=BAR_DELAY, leave=False, disable=not progress, bar_format=BAR) as bar:
        start = time.perf_counter()

        def say(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update(min(seconds, time.perf_counter() - start) - bar.n)

        kwargs = chat_keywords(target, tokenizer, raw) | ({} if grammar is None else {"grammar": grammar})
        run = partial(short_evaluation, target, tokenizer, say=say, kwargs=kwargs)
        found = {size: run(drafts, settings, ids, size, seconds / len(sizes)) for size in sizes if settings}
        if name is not None and (named := _reading({}, found[sizes[0]], name)).is_poor:
            others = {f"reading {i}": one for i, one in enumerate(other_readings(draft, target))}
            if others:
                read = {label: NamedDraft(model) for label, (_, model) in others.items()}
                greedy = [Setting(**of_draft(label)[0]) for label in others]
                again = run(read, greedy, ids, 1, seconds / 2)
                readings = tuple(_reading(fields, again, label) for label, (fields, _) in others.items())
                examination = Examination(named, readings)
    models = {"target": target, "draft": draft}
    parameters = {role: num_parameters(one) for role, one in models.items() if one is not None}
    return replace(answer, advice=Advice(found, parameters, examination))


def _reading(fields: dict[str, Any], evaluation: Evaluation, name: str) -> Reading:
    return Reading.of(fields, evaluation.totals(Setting(**of_draft(name)[0])))


def _fit(
    target: PreTrainedModel, draft: PreTrainedModel | None, tokenizers: dict[str, Any], do_sample: bool, example: dict[str, Any]
) -> tuple[Compatibility, DraftSource | None]:
    """What needs no text, and the source that the draft is, if there is one that fits."""
    report, reason = report_of(target, "model", example)
    if draft is None or reason is not None:
        return Compatibility(reason is None, reason or _summary(report), report), None
    notes = notes_on(target, draft)
    source = source_of("draft_model", draft, tokenizers)
    try:
        checks.check_source(source, target)
        source.check_ids(target)
    except ValueError as error:
        return Compatibility(False, str(error), report, ModelReport(type(draft).__name__, None), notes=notes), None
    if source.reads_target:
        other = ModelReport(type(draft).__name__, "ragged", "reads the target's own states")
    else:
        other, reason = report_of(draft, "draft_model", example if draft.main_input_name in example else {})
    match = source.vocabulary(target, do_sample)
    if reason is None and match is not None and match.strategy is None:
        reason = match.reason
    summary = reason or f"{_summary(report)}; draft: {_summary(other)}"
    return Compatibility(reason is None, summary, report, other, match, notes), source if reason is None else None


def _summary(report: ModelReport) -> str:
    return f"{report.name} takes the {report.path} path" + (f", it {report.why}" if report.why else "")


def ids_of_prompts(
    prompts: Iterable | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, raw: bool = False
) -> list[list[int]]:
    """Ids of each prompt: those given, else built-in ones. Texts go through the chat template, if there is one.

    Args:
        raw: texts are continued as they are.

    Raises:
        ValueError, TypeError: there is nothing to write about, or a prompt is none.
    """
    if prompts is None:
        if tokenizer is None:
            raise ValueError("`measure=True` has no tokenizer to write texts by: give `tokenizer=`, or `prompts=` of ids.")
        prompts = built_in_prompts(speaks_chat(tokenizer) and not raw)
    check_prompts(prompts)
    texts = [as_chat(prompt, tokenizer, raw) for prompt in prompts]
    found = [prompt_ids(text, index, model, tokenizer) for index, text in enumerate(texts)]
    if not found:
        raise ValueError("`prompts=[]` leaves nothing to write about: give one or more, or leave it out.")
    return found
