"""`evaluate`: several ways to decode on the same prompts of a data set, against plain decoding."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..call import checks
from ..call.configuration import first_given
from ..call.draft_models import tokenizer_of
from ..call.prompts import settings_of_rows
from ..generation import Attached
from ..reports import files
from ..reports.environment import environment
from .decoder import Decoder
from .drafts import Drafts, named_drafts
from .fingerprint import fingerprint
from .inputs import Prompts, Task, prompts_of
from .journal import FORMAT, BadRow, Recorder
from .plan import Plan
from .processes import Processes
from .progress import Shown
from .results import Evaluation
from .rows import Reader, read_rows
from .settings import Setting, grid, with_baselines

#: what settings say, or the evaluation itself
OF_SETTINGS = {
    "do_sample": "`temperatures`",
    "temperature": "`temperatures`",
    "num_assistant_tokens": "`num_draft_tokens`",
    "num_assistant_tokens_schedule": "`options`",
    "assistant_model": "`draft_model`",
    "reproducible": "`options`",
    "rule": "`options`",
    "generator": "`seed`",
    "speculative_config": "`settings`, with `options`",
}

#: what only sampling looks at
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
    num_draft_tokens: Iterable[int | None] = (4, None),
    prompt_lookup_num_tokens: Iterable[int] = (),
    temperatures: Iterable[float] = (0.0,),
    options: Mapping[str, Any] | None = None,
    settings: Sequence[Setting] | None = None,
    score: Any = None,
    references: Reader | None = None,
    max_new_tokens: int = 128,
    batch_size: int = 1,
    seed: int = 0,
    results: str | Path | None = None,
    progress: bool = True,
    **generate_kwargs,
) -> Evaluation:
    """Decode the prompts of a data set plainly and under every setting, and say what each setting brings.

    Each batch of prompts is decoded by all settings in turn, the order changing from batch to batch, so that what slows the
    machine down slows them all. Under `accelerate launch` each process takes its share of the batches, and all of them return
    the whole.

    Args:
        model: the target, attached or not.
        draft_model: a draft or the name of one, a list of them, or a dict by name; by default the one that is attached.
        dataset: see `read_rows`: a `datasets` data set, rows, a file or a name on the Hub.
        tokenizer: of the target; by default loaded from where the target came from.
        draft_tokenizers: those of drafts with another vocabulary, by the draft's name; a draft given by name brings its own.
        prompt: the column with the prompts, texts or lists of messages; a Jinja template over the columns, or a function of the
            row. By default the column `prompt`.
        split, config, limit: of the data set; `limit` rows from the start.
        num_draft_tokens: draft lengths for each draft, `None` for one chosen round by round.
        prompt_lookup_num_tokens: lengths of prompt lookup, which needs no draft.
        temperatures: 0 is greedy.
        options: further options of all these settings, see `Setting`.
        settings: in place of those lists, the settings themselves; plain decoding is added at each temperature.
        score: a task score: `"exact_match"`, `"rouge"`, `"pass@1"`, `"module:function"`, a function of predictions and
            references, or an object with `compute` as those of the library `evaluate`.
        references: what the score compares with: a column, a template or a function, as `prompt`.
        max_new_tokens: tokens for each prompt, at most.
        batch_size: prompts decoded together.
        seed: of sampling; each batch has its own, the same under every setting.
        results: a file, one JSON line a call, written as they come, by one evaluation at a time. A run that was killed goes on
            from it and loses nothing; further settings may be added to one that was not.
        progress: show a bar, with the acceptance so far.
        **generate_kwargs: anything else that `generate` takes for each row: `top_p`, `stop_strings`, a processor.

    Returns:
        The evaluation. A row without a prompt, or one that cannot be decoded, is in its `bad_rows` and left out of every total.

    Raises:
        ValueError, TypeError: before the first forward, naming the argument, its value and the way out.
    """
    checks.check_positive_int("batch_size", batch_size, "decodes no prompt: give 1 or more.")
    checks.check_positive_int("max_new_tokens", max_new_tokens, "generates nothing: give 1 or more.")
    given_config = generate_kwargs.get("generation_config") or GenerationConfig()
    if results is not None:
        files.check_output("`results`:", results)
    if limit is not None:
        checks.check_positive_int("limit", limit, "reads no row: give 1 or more, or leave it out.")
    for name, way_out in OF_SETTINGS.items():
        if first_given(*(given.get(name) for given in (generate_kwargs, vars(given_config)))) is not None:
            raise ValueError(f"`{name}` differs between settings: give {way_out} instead.")
    if dataset is None:
        raise TypeError("`dataset` is missing: pass a datasets.Dataset, rows, a file or a name on the Hub.")
    model = checks.unwrap(model, "model")
    checks.check_model(model, "model")
    tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
    drafts = named_drafts(draft_model, model, tokenizer, draft_tokenizers or {})
    if settings is None:
        settings = grid(drafts, num_draft_tokens, prompt_lookup_num_tokens, temperatures, options)
    elif options:
        raise ValueError("`options` has no effect beside `settings`, which have their own: give it there.")
    settings = with_baselines(settings)
    for setting in settings:
        if setting.draft is not None and setting.draft not in drafts:
            raise ValueError(
                f"the setting {setting.name!r} names no draft of this call: {', '.join(drafts) or 'none'}."
            )
    ignored = [name for name in OF_SAMPLING if generate_kwargs.get(name) is not None]
    if ignored and not any(setting.temperature for setting in settings):
        raise ValueError(
            f"`{ignored[0]}={generate_kwargs[ignored[0]]!r}` has no effect on greedy decoding: give a temperature above 0, or "
            "leave it out."
        )
    kwargs = settings_of_rows(model, tokenizer, generate_kwargs | {"max_new_tokens": max_new_tokens})
    task = Task(score, references) if score is not None else None
    if task is None and references is not None:
        raise ValueError("`references` has no effect without `score`: give both, or neither.")

    rows = read_rows(dataset, split=split, config=config, limit=limit)
    prompts = prompts_of(rows, prompt, model, tokenizer, max_new_tokens)
    if task is not None:
        task.read(rows, prompts)
    processes = Processes.of(model)
    of_drafts = {name: fingerprint(draft.model) for name, draft in drafts.items()}
    weights, of_drafts = processes.gather([(fingerprint(model), of_drafts)])[0]
    plan = Plan(
        header={
            "format": FORMAT,
            "target": _source(model),
            "dtype": str(model.dtype).removeprefix("torch."),
            "weights": weights,
            "drafts": {name: draft.source for name, draft in drafts.items()},
            "draft_weights": of_drafts,
            "draft_tokenizers": [name for name, draft in drafts.items() if draft.tokenizer is not None],
            "dataset": _dataset(dataset, split, config, limit),
            "num_rows": len(rows),
            "prompts": prompts.digest,
            "batch_size": batch_size,
            "seed": seed,
            "generate": _described(kwargs),
            "generation_config": _described(model.generation_config.to_diff_dict()),
            "settings": [setting.to_dict() for setting in settings],
            "is_compiled": _is_compiled(model),
            "environment": environment(model) | {"processes": processes.count},
        },
        settings=settings,
        path=None if results is None else Path(results),
    )
    decoder = Decoder(model, tokenizer, drafts, kwargs, seed)
    with plan.locked(processes):
        return _run(plan, prompts, decoder, processes, task, progress)


def _run(
    plan: Plan, prompts: Prompts, decoder: Decoder, processes: Processes, task: Task | None, progress: bool
) -> Evaluation:
    journal = plan.known(processes)
    for row in prompts.bad_rows:
        journal.add(row)
    batches = prompts.batches(plan.header["batch_size"])
    mine = range(processes.rank, len(batches), processes.count)
    usable = [batch for batch in mine if journal.bad_rows.keys().isdisjoint(batches[batch][0])]
    missing = [(batch, s) for batch in usable for s in plan.settings if (s.name, batch) not in journal.calls]
    shown = Shown(progress and processes.rank == 0, len(mine) * len(plan.settings), len(missing))
    with Recorder(journal, plan.path_of(processes)) as recorder, shown:
        open_batches = list(dict.fromkeys(batch for batch, _ in missing))
        for setting in dict.fromkeys(setting for _, setting in missing):
            shown.say(f"warming up: {setting.name}", at_once=True)
            _warm_up(
                decoder,
                setting,
                [batches[batch][1] for batch in dict.fromkeys((*open_batches[:2], open_batches[-1]))],
            )
        for batch in mine:
            indices, ids = batches[batch]
            # Turned from batch to batch, so that no setting always comes after the same other.
            turned = plan.settings[batch % len(plan.settings) :] + plan.settings[: batch % len(plan.settings)]
            for setting in turned:
                if (setting.name, batch) in journal.calls or not journal.bad_rows.keys().isdisjoint(indices):
                    continue
                shown.say(setting.name)
                try:
                    call = decoder.decode(setting, batch, indices, ids)
                except (ValueError, RuntimeError, IndexError) as error:  # about this batch: the setting was warmed up
                    for index in indices:
                        recorder.add(BadRow(index, f"{setting.name}: {type(error).__name__}: {error}"))
                    continue
                recorder.add(call)
                shown.count(call)
            _compare(recorder, decoder, plan.settings, batch, ids)
    evaluation = Evaluation(plan.merged(processes.gather([journal])))
    if task is not None:
        (scores,) = processes.gather([_scored(task, evaluation)] if processes.rank == 0 else [])
        evaluation.journal.scores |= scores
    if processes.writes and processes.rank == 0:
        plan.finish(evaluation)
    return evaluation


def _scored(task: Task, evaluation: Evaluation) -> dict[str, dict[str, float | None]]:
    """The scores; a score of the user's that fails at the end must not take with it what was decoded."""
    try:
        return task.scores_of(evaluation)
    except Exception as error:
        warnings.warn(f"the score failed, so that there is none: {type(error).__name__}: {error}", stacklevel=2)
        return {}


def _warm_up(decoder: Decoder, setting: Setting, batches: list[list[list[int]]]) -> None:
    """A setting that cannot work raises here; one batch may be at fault itself, so that others are tried.

    The last batch may be smaller, and what is measured or compiled for its size should not count either.
    """
    first, *others = batches
    try:
        decoder.warm_up(setting, first)
        others = [batch for batch in others[-1:] if len(batch) != len(first)]
    except (RuntimeError, IndexError):
        if not others:
            raise
    for batch in others:
        decoder.warm_up(setting, batch)


def _compare(
    recorder: Recorder, decoder: Decoder, settings: list[Setting], batch: int, prompts: list[list[int]]
) -> None:
    """Note where texts that should equal plain decoding's do not, once."""
    journal = recorder.journal
    for setting in settings:
        call, plain = (journal.calls.get((s.name, batch)) for s in (setting, setting.baseline))
        if call is None or plain is None or setting.is_plain or not setting.is_exact:
            continue
        for row, expected, prompt in zip(call.rows, plain.rows, prompts, strict=True):
            if row.new_ids != expected.new_ids and (setting.name, row.index) not in journal.differences:
                recorder.add(decoder.difference(setting, prompt, expected, row))


def _is_compiled(model: PreTrainedModel) -> bool:
    """By what is attached; a setting may ask for it, too."""
    attached = vars(model).get("generate")
    return isinstance(attached, Attached) and bool(attached.config.compile or attached.config.cuda_graphs)


def _source(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__


def _dataset(dataset, split: str | None, config: str | None, limit: int | None) -> dict[str, Any]:
    name = (
        str(dataset)
        if isinstance(dataset, (str, Path))
        else getattr(dataset, "info", None) and dataset.info.dataset_name
    )
    return {"name": name or "rows", "config": config, "split": split, "limit": limit}


def _described(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `generate` as JSON knows them; of anything else its type and fingerprint."""

    def plain(value):
        if isinstance(value, GenerationConfig):
            return value.to_diff_dict()
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (str, int, float)) else f"{type(value).__name__} {fingerprint(value)}"

    left_out = ("tokenizer", "return_dict_in_generate", "transformers_version")
    return {name: plain(value) for name, value in kwargs.items() if name not in left_out and value is not None}
