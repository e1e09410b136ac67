"""A model card for a target and its draft, from evaluations: metadata, acceptance lengths, speed, how to use it."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from huggingface_hub import HfApi

from ..call.option_table import IN_CALL
from ..measuring import Evaluation, Setting, Totals
from ..measuring.render import result_table, wording
from ..measuring.results import FEWEST_TOKENS
from ..measuring.speedup import INTERVAL
from ..reports import files
from .pairing import FILE_NAME, is_hub_name
from .readme import edit, escaped, render, with_tags

#: endings of files that hold prompts
FILES = re.compile(r"\.(jsonl|json|csv|tsv|txt|parquet|arrow)(\.gz)?$")

#: an evaluation or its file, several of them, or several by use case
Evaluations: TypeAlias = "Evaluation | str | Path | Sequence[Evaluation | str | Path] | Mapping[str, Evaluation | str | Path]"


def by_use_case(given: Evaluations) -> dict[str, Evaluation]:
    """The evaluations by use case, which is the name of the data set unless the user named it.

    Raises:
        TypeError: something is neither an evaluation nor a file.
        ValueError: there is none, two have one name, or they are about different targets.
    """
    if isinstance(given, Mapping):
        found = {name: _loaded(one) for name, one in given.items()}
    else:
        several: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
        pairs = [(_use_case(evaluation), evaluation) for evaluation in map(_loaded, several)]
        found = dict(pairs)
        if len(found) < len(pairs):
            names = ", ".join(name for name, _ in pairs)
            raise ValueError(f"evaluations of one name ({names}): pass `{{use case: evaluation}}` to tell them apart.")
    if not found:
        raise ValueError("no evaluation: pass what `hf_speculative.evaluate` returned, or its file.")
    targets = list(dict.fromkeys(evaluation.header["target"] for evaluation in found.values()))
    if len(targets) > 1:
        raise ValueError(f"the evaluations are about several targets, {', '.join(targets)}: pass those of one.")
    return found


def choose_draft(evaluations: Mapping[str, Evaluation], draft_model: str | None) -> str | None:
    """The name of the draft that was evaluated; None where all drafts came from the target itself.

    Raises:
        ValueError: several were evaluated and none is chosen, or the one chosen was not.
    """
    drafts = (setting.draft for evaluation in evaluations.values() for setting in evaluation.settings)
    names = [name for name in dict.fromkeys(drafts) if name is not None]
    if draft_model is None and len(names) <= 1:
        return next(iter(names), None)
    if draft_model is None:
        raise ValueError(f"several drafts were evaluated, {', '.join(names)}: choose one by `draft_model`.")
    if draft_model not in names:
        known = ", ".join(names) or "none"
        raise ValueError(f"`draft_model={draft_model!r}` is none of the drafts evaluated, {known}.")
    return draft_model


def measured(evaluation: Evaluation, draft: str | None) -> list[Totals]:
    """What was measured with the draft, and without any draft model, in order of settings."""
    ours = [setting for setting in evaluation.settings if setting.is_ours and setting.draft in (None, draft)]
    return [totals for totals in map(evaluation.totals, ours) if totals.speedup is not None]


def speedup_of(totals: Totals) -> float:
    """Of what was measured."""
    assert totals.speedup is not None
    return totals.speedup.median


def _loaded(given: Evaluation | str | Path) -> Evaluation:
    if isinstance(given, (str, Path)):
        return Evaluation.load(given)
    if not isinstance(given, Evaluation):
        raise TypeError(f"`evaluations` holds a value of type {type(given).__name__}: pass an Evaluation, or its file.")
    return given


def is_on_hub(name: str) -> bool:
    """Whether it can be the name of a Hub repository, and is no file or folder."""
    return is_hub_name(name) and not Path(name).exists() and not FILES.search(name)


def data_set_name(evaluation: Evaluation) -> str:
    """The name of the data set on the Hub, or of the file without its folder and ending."""
    name: str = evaluation.header["dataset"]["name"]
    return name if is_on_hub(name) else FILES.sub("", Path(name).name)


def _use_case(evaluation: Evaluation) -> str:
    config = evaluation.header["dataset"]["config"]
    name = data_set_name(evaluation).split("/")[-1]
    return f"{name}, {config}" if config else name


def card(
    evaluations: Evaluations,
    path: str | Path | None = None,
    *,
    draft_model: str | None = None,
    target_name: str | None = None,
    draft_name: str | None = None,
    push_to_hub: str | None = None,
    token: str | None = None,
) -> str:
    """Write a model card for a target and its draft, or add a section to an existing card.

    Everything else in an existing card stays as it is: metadata, results of others, text. A second run replaces what the first
    one wrote.

    Args:
        evaluations: an `Evaluation` or its file, several of them, or a dict of them by use case.
        path: the README.md to write or edit, or its folder. If the folder has a `speculative_config.json`
            (from `hf_speculative.save_pretrained`), the card says how to load it.
        draft_model: which draft, if several were evaluated.
        target_name, draft_name: their names on the Hub, if they were evaluated from folders.
        push_to_hub: edit the card of this Hub repository instead, in a commit.
        token: for that commit.

    Returns:
        The text of the whole card, which `huggingface_hub.ModelCard` reads. The Hub's own validation runs when it is pushed.

    Raises:
        ValueError: evaluations of several targets, several drafts and none chosen, nothing measured, or a broken card.
    """
    if path is not None and push_to_hub is not None:
        raise ValueError("`path` and `push_to_hub` are two cards: give one.")
    found = by_use_case(evaluations)
    draft = choose_draft(found, draft_model)
    by_case = {use_case: measured(evaluation, draft) for use_case, evaluation in found.items()}
    figures = [totals for of_case in by_case.values() for totals in of_case]
    if not figures:
        raise ValueError(f"nothing was measured, or fewer than {FEWEST_TOKENS} tokens: evaluate more prompts.")
    header = next(iter(found.values())).header
    base_model = target_name or (header["target"] if is_on_hub(header["target"]) else None)
    target_name = target_name or header["target"]
    draft_name = draft_name or (draft and (header["drafts"].get(draft) or draft))
    api = HfApi(token=token)
    readme = commit = None
    if path is not None:
        readme = Path(path) if Path(path).suffix == ".md" else Path(path, "README.md")
        files.check_output("`path`:", readme, makes_folders=True)
    elif push_to_hub is not None:
        commit = api.model_info(push_to_hub).sha
        patterns = ["README.md", FILE_NAME]
        readme = Path(api.snapshot_download(push_to_hub, revision=commit, allow_patterns=patterns), "README.md")
    existing, repo = "", None
    if readme is not None:
        existing = readme.read_bytes().decode() if readme.exists() else ""
        repo = (push_to_hub or str(readme.parent)) if (readme.parent / FILE_NAME).exists() else None
    title, of_card = _short(target_name), repo or push_to_hub or draft_name or target_name
    if draft_name is not None:
        short = _short(draft_name)
        title = f"{title} with the draft {short}" if repo is not None else f"{short}, a draft for {title}"
    best = max(figures, key=speedup_of).setting
    how, has_encoder = best if draft_name is None else None, bool(header.get("is_encoder_decoder"))
    code = usage(target_name, bool(header.get("is_chat")), draft_name, repo, how, has_encoder)
    body = render("hub/card.md", target=target_name, draft=draft_name, usage=code, **shown(found, draft))

    def metadata(existing: dict[str, Any]) -> dict[str, Any]:
        """The keys to set; what a user set already, other than lists that grow, stays."""
        tags = ["speculative-decoding", *(["draft-model"] if draft_name else [])]
        results = [_result(case, found[case], of_case, draft_name) for case, of_case in by_case.items() if of_case]
        index = _model_index(existing.get("model-index") or [], results, _short(of_card))
        return with_tags(existing, tags, base_model) | {"model-index": index}

    text = edit(existing, "card", escaped(title), body, metadata)
    if push_to_hub is not None:
        api.upload_file(
            path_or_fileobj=text.encode(),
            path_in_repo="README.md",
            repo_id=push_to_hub,
            parent_commit=commit,  # who changed the card meanwhile is not overwritten
            commit_message="Speculative decoding: what was measured",
        )
    elif readme is not None:
        readme.parent.mkdir(parents=True, exist_ok=True)
        files.write(readme, text)
    return text


def _short(name: str) -> str:
    return Path(name).name or Path(name).resolve().name


def _model_index(existing: list[Any], ours: list[Any], model_name: str) -> list[Any]:
    """The results with ours; those of others stay as they are, also where huggingface_hub would merge them with ours."""
    if not existing:
        return [{"name": model_name, "results": ours}]
    kept = [model | {"results": [r for r in model.get("results") or [] if not _is_ours(r)]} for model in existing]
    kept[0]["results"] += ours
    return kept


def _is_ours(result: dict[str, Any]) -> bool:
    metrics = result.get("metrics") or []
    return bool(metrics) and all("hf_speculative" in (metric.get("args") or {}) for metric in metrics)


def _result(use_case: str, evaluation: Evaluation, figures: list[Totals], draft_name: str | None) -> dict[str, Any]:
    """A result of a model-index; `huggingface_hub.EvalResult` would merge those of several use cases on one data set."""
    source, metrics = evaluation.header["dataset"], []
    for totals in figures:
        counts = totals.statistics
        assert counts is not None  # none of these is plain decoding
        conditions = _conditions(use_case, evaluation, totals.setting, draft_name)
        for kind, name, value in (
            ("mean_acceptance_length", "Mean acceptance length, bonus token included", counts.mean_acceptance_length),
            ("draft_acceptance_rate", "Share of draft tokens accepted", counts.draft_acceptance_rate),
            ("speedup", "Speedup over plain decoding", speedup_of(totals)),
        ):
            if math.isfinite(value):  # nothing may have been drafted
                metrics.append({"type": kind, "value": round(value, 4), "name": name, "args": conditions})
    dataset = {"name": use_case, "type": source["name"] if is_on_hub(source["name"]) else use_case}
    dataset |= {name: source[name] for name in ("config", "split") if source[name] is not None}
    return {"task": {"type": "text-generation", "name": "Text Generation"}, "dataset": dataset, "metrics": metrics}


def _conditions(use_case: str, evaluation: Evaluation, setting: Setting, draft_name: str | None) -> dict[str, Any]:
    """What a figure depends on."""
    header, environment, how = evaluation.header, evaluation.environment, setting.shown_options
    if setting.draft is not None:
        is_own = draft_name and Path(draft_name).is_absolute()  # a folder of this machine, which nobody else has
        how["draft_model"] = Path(draft_name or "").name if is_own else draft_name
    if setting.max_draft_tokens is None:
        how.setdefault("num_draft_tokens", "chosen each round")
    return {
        "use_case": use_case,
        **how,
        "temperature": setting.temperature,
        "batch_size": header["batch_size"],
        "max_new_tokens": header["generate"]["max_new_tokens"],
        "dtype": header["dtype"],
        "hardware": environment["device"],
        "hf_speculative": environment["hf_speculative"],
    }


#: what examples continue, ask a model with a chat template, and give an encoder
PROMPT, QUESTION, TEXT = "def main():", "What is a hash table?", "translate English to German: Hello."


def usage(
    target: str,
    is_chat: bool,
    draft: str | None = None,
    repo: str | None = None,
    best: Setting | None = None,
    has_encoder: bool = False,
) -> str:
    """Lines to paste: transformers' pipeline with a draft, with a repository that names one, or under a setting.

    An encoder-decoder has no pipeline: its lines call `generate`.
    """
    options = "" if best is None else _keywords(best.shown_options)
    named, owner = "" if draft is None else f", draft_model={draft!r}", "model" if has_encoder else "pipe.model"
    attached = f"hf_speculative.attach({owner}{named})\n" if repo is None else ""
    if has_encoder:
        loaded = f"transformers.AutoModelForSeq2SeqLM.from_pretrained({target!r})"
        model = loaded if repo is None else f"hf_speculative.from_pretrained({repo!r})"
        return f"""import hf_speculative, transformers
model, tokenizer = {model}, transformers.AutoTokenizer.from_pretrained({repo or target!r})
{attached}ids = model.generate(**tokenizer({TEXT!r}, return_tensors='pt'), max_new_tokens=64{options})
print(tokenizer.decode(ids[0], skip_special_tokens=True))"""
    said = f"[{{'role': 'user', 'content': {QUESTION!r}}}]" if is_chat else repr(PROMPT)
    found = "['generated_text'][-1]['content']" if is_chat else "['generated_text']"
    model = repr(target) if repo is None else f"hf_speculative.from_pretrained({repo!r}), tokenizer={repo!r}"
    return f"""import hf_speculative, transformers
pipe = transformers.pipeline('text-generation', model={model})
{attached}print(pipe({said}, max_new_tokens=64{options})[0]{found})"""


def _keywords(options: Mapping[str, Any]) -> str:
    """Options as keywords of `generate`, after a comma; what is no keyword goes into a config."""
    own = "".join(f", {name}={value!r}" for name, value in options.items() if name in IN_CALL)
    settings = ", ".join(f"{name}={value!r}" for name, value in options.items() if name not in IN_CALL)
    return f"{own}, speculative_config=hf_speculative.SpeculativeConfig({settings})" if settings else own


def shown(found: Mapping[str, Evaluation], draft: str | None) -> dict[str, Any]:
    """Tables of what was measured with a draft, by use case and temperature, and how it was measured.

    Args:
        draft: as the evaluations call it.
    """
    intervals = dict.fromkeys(one.spread_name == INTERVAL for one in found.values())
    return {
        "spreads": " or ".join("its 95 % interval" if is_interval else "the quartiles of repeats" for is_interval in intervals),
        "sections": [_with_draft(section, draft) for section in result_table.sections(found)],
        "measured": [(name, data_set_name(one), wording.about(one)) for name, one in found.items()],
        "commands": list(dict.fromkeys(without_folders(one.environment["command"]) for one in found.values())),
    }


def _with_draft(section: result_table.Section, draft: str | None) -> result_table.Section:
    """Without rivals, without other drafts, and without the folder of this machine that the draft is in."""

    def named(setting: Setting) -> Setting:
        if draft is None or setting.draft != draft or not Path(draft).is_absolute():
            return setting
        own = {"draft_model": setting.options["draft_model"].replace(draft, Path(draft).name)}
        return Setting(temperature=setting.temperature, **{**setting.options, **own})

    settings = ((totals, totals.setting) for totals in section.totals)
    kept = [totals for totals, setting in settings if setting.rival is None and setting.draft in (None, draft)]
    advice = section.recommendation
    if advice is not None:
        chosen, second = (one and named(one) for one in (advice.setting, advice.runner_up))
        advice = replace(advice, setting=chosen, best=named(advice.best), runner_up=second)
    return replace(section, totals=[replace(one, setting=named(one.setting)) for one in kept], recommendation=advice)


def without_folders(command: str) -> str:
    """A card is for others, who do not have this machine's folders.

    Raises:
        ValueError: it is no command.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"the results name a command that is none ({error}): {command!r}.") from error
    return shlex.join(re.sub(r"^(--[\w-]+=)?(/.*)$", lambda found: (found[1] or "") + Path(found[2]).name, w) for w in words)
