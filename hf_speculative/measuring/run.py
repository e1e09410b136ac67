"""`evaluate`: decodes the prompts of a data set under several settings, against plain decoding."""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.attached import attached_to
from ..call.configuration import SpeculativeConfig, setting_of
from ..call.option_table import DRAFTING, ROWS, SOURCES
from ..call.option_types import WholeNumber
from ..call.prompts import settings_of_rows
from ..distillation.learner import frozen
from ..grammar.processor import read as read_grammar
from ..reports import files
from ..tokenizers.chat import chat_keywords, speaks_chat
from ..tokenizers.loading import tokenizer_of
from .calls import Rival
from .decoder import Decoder, Runner
from .inputs import Prompts, Task, categories_of, prompts_of
from .journal import BadRow
from .plan import Plan, Processes, header_of
from .results import Evaluation
from .rows import Reader, read_rows
from .settings import Drafts, Setting, grid, named_drafts, with_baselines

#: keywords that settings, or the evaluation itself, decide
OF_SETTINGS = dict.fromkeys((name for name in DRAFTING if not ROWS[name].is_source), "`options`") | {
    "do_sample": "`temperatures`",
    "temperature": "`temperatures`",
    "num_assistant_tokens": "`num_draft_tokens`",
    "assistant_model": "`draft_model`",
    "generator": "`seed`",
    "speculative_config": "`settings`",
}

#: keywords that only sampling reads
OF_SAMPLING = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def evaluate(
    model: PreTrainedModel,
    draft_model: Drafts = None,
    dataset=None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    prompt: Reader | None = None,
    split: str | None = None,
    config: str | None = None,
    limit: int | None = None,
    raw: bool = False,
    category: Reader | None = None,
    minutes: float | None = None,
    num_draft_tokens: Iterable[int | None] = (4, None),
    temperatures: Iterable[float] = (0.0,),
    options: Mapping[str, Any] | None = None,
    settings: Sequence[Setting] | None = None,
    score: Any = None,
    references: Reader | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 1,
    repeats: int = 1,
    rivals: Iterable[Rival] = (),
    skip_failing: bool = False,
    seed: int = 0,
    results: str | Path | None = None,
    progress: bool = True,
    **generate_kwargs,
) -> Evaluation:
    """Decode the prompts of a data set plainly and under several settings, and compare speed, acceptance and texts.

    Each batch of prompts is decoded under all settings in turn. Their order changes from batch to batch, so that a busy machine
    slows them all. Under `accelerate launch` each process takes its share of the batches, and all of them return the
    whole evaluation.

    Args:
        model: the target, attached or not.
        draft_model: a draft or the name of one, a list of them, or a dict by name. Default: what is attached.
        dataset: see `read_rows`: a `datasets` data set, rows, a file or a name on the Hub.
        tokenizer: the target's. Default: loaded from where it came from.
        draft_tokenizers: those of drafts with another vocabulary, by the draft's name; a draft given by name brings its own.
        prompt: the column with the prompts, texts or lists of messages; a Jinja template over the columns, or a function of the
            row. By default the column `prompt`. A list of texts is a conversation, what the user says turn by turn: each turn
            comes after plain decoding's answers to those before it.
        split, config: which one, if the data set has several.
        limit: the number of rows to use, from the first.
        raw: continue prompts that are texts as they are. Default: they are what a user says, where there is a chat template.
        category: the column, template or function with the category of a row, for figures by category.
        minutes: the time after which no batch begins. What was measured is a sample; the same call continues it.
        num_draft_tokens: draft lengths for each source of drafts, `None` for one chosen round by round.
        temperatures: 0 is greedy.
        options: further options of all these settings that they are about, see `Setting`.
        settings: a list of `Setting` instead of the lists above; plain decoding is added at each temperature.
        score: a task score: `"exact_match"`, `"module:function"`, a function of predictions and references, or an object
            with `compute` as those of the library `evaluate`.
        references: what the score compares texts with: a column, a template or a function, as for `prompt`.
        max_new_tokens: the most tokens to generate for each prompt.
        batch_size: prompts decoded together.
        repeats: how often each prompt is decoded under each setting. From 2 on the spread of a speedup is quartiles, and drafts
            copied from earlier texts do not outlive a call.
        rivals: other ways to decode, which `Setting(rival=name)` asks for; without `settings`, each at every temperature.
        skip_failing: leave out a setting that cannot be measured and say why in `failures`, rather than raise.
        seed: for sampling; each batch has its own, the same under every setting.
        results: a file with one JSON line for each call, written at once, by one evaluation at a time. The same call
            continues an existing file, after a kill or with further settings.
        progress: show a bar.
        **generate_kwargs: lists of values for other keywords that ask for drafts, as `prompt_lookup_num_tokens=[10]`. All else
            that `generate` takes for each row: `top_p`, `stop_strings`, a processor.

    Returns:
        The evaluation. A row without a prompt, or one that cannot be decoded, is in its `bad_rows` and left out of every total.

    Raises:
        ValueError, TypeError: before the first forward, naming the argument, its value and the way out.
    """
    batch_size = WholeNumber("decodes no prompt: give 1 or more.").checked("batch_size", batch_size)
    max_new_tokens = WholeNumber("generates nothing: give 1 or more.").checked("max_new_tokens", max_new_tokens)
    repeats = WholeNumber("decodes nothing: give 1 or more.").checked("repeats", repeats)
    if results is not None:
        files.check_output("`results`:", results)
    if minutes is not None and not minutes > 0:
        raise ValueError(f"`minutes={minutes}` measures nothing: give a positive number, or leave it out.")
    if limit is not None:
        limit = WholeNumber("reads no row: give 1 or more, or leave it out.").checked("limit", limit)
    for name, way_out in OF_SETTINGS.items():
        if setting_of(None, generate_kwargs, name) is not None:
            raise ValueError(f"`{name}` differs between settings: give {way_out} instead.")
    if dataset is None:
        raise TypeError("`dataset` is missing: pass a datasets.Dataset, rows, a file or a name on the Hub.")
    model = checks.unwrap(model, "model")
    checks.check_model(model, "model")
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    others = {rival.name: rival for rival in rivals}
    sources = {name: generate_kwargs.pop(name) for name in SOURCES if name in generate_kwargs}
    drafts, methods = named_drafts(draft_model, model, tokenizer, draft_tokenizers or {})
    if settings is None:
        sources |= {"draft_model": methods} if methods and (draft_model is not None or not sources) else {}
        settings = grid(drafts, sources, num_draft_tokens, temperatures, options)
        settings += [Setting(rival=name, temperature=temperature) for temperature in temperatures for name in others]
    elif options or sources:
        raise ValueError(f"`{next(iter(sources), 'options')}` has no effect beside `settings`: give it in these.")
    settings = with_baselines(settings)
    for setting in settings:
        if setting.draft is not None and setting.draft not in drafts:
            raise ValueError(f"setting {setting.name!r} names no draft of this call: {', '.join(drafts) or 'none'}.")
        if setting.rival is not None and setting.rival not in others:
            raise ValueError(f"`rival={setting.rival!r}` names none of `rivals`: {', '.join(others) or 'none'}.")
        most = None if setting.rival is None else others[setting.rival].max_batch_size
        if most is not None and batch_size > most:
            raise ValueError(f"`batch_size={batch_size}`: {setting.rival} takes {most} at most: give that.")
    ignored = [name for name in OF_SAMPLING if generate_kwargs.get(name) is not None]
    if ignored and not any(setting.temperature for setting in settings):
        raise ValueError(f"`{ignored[0]}={generate_kwargs[ignored[0]]!r}` has no effect on greedy decoding: add a temperature.")
    if (grammar := generate_kwargs.get("grammar")) is not None:
        generate_kwargs["grammar"] = read_grammar(grammar)  # the file may change, and results are continued by what it says
    kwargs = chat_keywords(model, tokenizer, raw) | generate_kwargs | {"max_new_tokens": max_new_tokens}
    kwargs = settings_of_rows(model, tokenizer, kwargs)
    decoder = Decoder(model, tokenizer, drafts, kwargs, seed, others, forgets=repeats > 1)
    for setting in () if skip_failing else settings:
        decoder.check(setting)
    if (score is None) != (references is None):
        raise ValueError("`score` and `references` have an effect together: give both, or neither.")

    rows = read_rows(dataset, split=split, config=config, limit=limit)
    prompts = prompts_of(rows, prompt, model, tokenizer, max_new_tokens, raw, takes_turns=True)
    task = None if score is None or references is None else Task(score, references, rows, prompts)
    processes = Processes.of(model)
    header = header_of(decoder, settings, batch_size, repeats, processes)
    header |= {
        "dataset": _dataset(dataset, split, config, limit),
        "num_rows": len(rows) + len(prompts.before),
        "categories": categories_of(rows, category, prompts),
        "prompts": prompts.digest,
        "is_chat": speaks_chat(tokenizer) and not raw,
        "is_encoder_decoder": model.config.is_encoder_decoder,
    }
    plan = Plan(header, settings, None if results is None else Path(results), processes)
    with plan.locked(), frozen((attached_to(model)[1] or SpeculativeConfig()).learn):
        return _run(plan, prompts, decoder, task, progress, skip_failing, minutes)


class Stopped(KeyboardInterrupt):
    """Ctrl-C in an evaluation: its argument is what was measured so far."""


def evaluate_until_stopped(*args, **kwargs) -> tuple[Evaluation, bool]:
    """`evaluate`; after Ctrl-C what was measured so far. And whether it was stopped.

    Raises:
        KeyboardInterrupt: nothing was measured.
    """
    try:
        return evaluate(*args, **kwargs), False
    except Stopped as stopped:
        return stopped.args[0], True


def _run(
    plan: Plan, prompts: Prompts, decoder: Decoder, task: Task | None, progress: bool, skip_failing: bool, minutes: float | None
) -> Evaluation:
    journal, processes = plan.known(), plan.processes
    for setting in plan.settings:  # what it lacked may be there now
        journal.failures.pop(setting.name, None)
    for row in prompts.bad_rows:
        journal.add(row)
    numbers = itertools.count()
    groups = [[(next(numbers), turn) for turn in turns] for turns in prompts.groups(plan.header["batch_size"])]
    mine = groups[processes.rank :: processes.count]
    repeats, deadline = plan.header["repeats"], math.inf if minutes is None else time.monotonic() + 60 * minutes
    total = sum(map(len, mine)) * len(plan.settings) * repeats
    shown = tqdm(total=total, unit="call", disable=not progress or processes.rank > 0, dynamic_ncols=True)
    with journal.written_to(plan.own_path), shown:
        runner = Runner(decoder, plan.settings, journal, repeats, skip_failing, shown.set_description, shown.update)
        if skip_failing:
            runner.check()
        calls_of = ((turns[0][1], [c for turn in turns for c in runner.missing(*turn)]) for turns in mine)
        missing = [(first, calls) for first, calls in calls_of if calls]
        shown.n = shown.initial = total - sum(len(calls) for _, calls in missing)
        warming = [[prompts.ids[index] for index in first] for first, _ in (*missing[:2], *missing[2:][-1:])]
        try:
            for setting in dict.fromkeys(setting for _, calls in missing for setting, _ in calls):
                runner.warm_up(setting, warming)
            for turns in mine:
                is_over = [time.monotonic() > deadline]
                if any(processes.gather(is_over) if processes.shares_model else is_over):  # so that these decide alike
                    break
                _converse(turns, prompts, runner)
        except KeyboardInterrupt as error:
            if not journal.calls:
                raise
            raise Stopped(Evaluation(plan.merged([journal]))) from error
    evaluation = Evaluation(plan.merged(processes.gather([journal])))
    if task is not None:
        try:
            (scores,) = processes.gather([task.scores_of(evaluation)] if processes.rank == 0 else [])
        except KeyboardInterrupt as error:
            raise Stopped(evaluation) from error
        evaluation.journal.scores |= scores
    if processes.writes and processes.rank == 0:
        plan.finish(evaluation)
    return evaluation


def _converse(turns: list[tuple[int, list[int]]], prompts: Prompts, runner: Runner) -> None:
    """Decode a group of conversations turn by turn, each after plain decoding's answers to its earlier turns."""
    answers: dict[int, str] = {}
    for batch, indices in turns:
        usable = []
        for index in indices:
            try:
                prompts.ask(index, answers)
                usable.append(index)
            except (ValueError, TypeError) as error:
                runner.journal.add(BadRow(index, str(error)))
        runner.run(batch, usable, [prompts.ids[index] for index in usable])
        plain = runner.journal.calls.get((runner.settings[0].name, batch * runner.repeats))
        answers |= {} if plain is None else {row.index: row.text for row in plain.rows}


def _dataset(dataset, split: str | None, config: str | None, limit: int | None) -> dict[str, Any]:
    named = getattr(getattr(dataset, "info", None), "dataset_name", None)
    name = str(dataset) if isinstance(dataset, (str, Path)) else named
    return {"name": name or "the prompts", "config": config, "split": split, "limit": limit}
