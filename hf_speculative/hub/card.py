"""A model card for a target and its draft, from evaluations: metadata, acceptance lengths, speed, how to use it."""

import math
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from ..measuring import Evaluation, Setting, Totals
from ..measuring.results import FEWEST_TOKENS
from ..reports import files
from .card_text import shown, usage
from .figures import Evaluations, by_use_case, choose_draft, is_on_hub, measured, speedup_of
from .pairing_file import FILE_NAME
from .readme import edit, escaped, render, with_tags


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
    code = usage(target_name, bool(header.get("is_chat")), draft_name, repo, best if draft_name is None else None)
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
