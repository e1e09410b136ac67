"""A model card for a target and its draft, from evaluations: metadata, acceptance lengths, speed, how to use it."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi
from huggingface_hub.repocard_data import eval_results_to_model_index

from ..reports import files
from .card_text import shown, usage
from .figures import Evaluations, Figure, by_use_case, choose_draft, figures_of, is_on_hub
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
    revision: str | None = None,
    create_pr: bool = False,
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
        token, revision, create_pr: for that commit.

    Returns:
        The text of the whole card, which `huggingface_hub.ModelCard` reads. The Hub's own validation runs when it is pushed.

    Raises:
        ValueError: evaluations of several targets, several drafts and none chosen, nothing measured, or a broken card.
    """
    if path is not None and push_to_hub is not None:
        raise ValueError("`path` and `push_to_hub` are two cards: give one.")
    found = by_use_case(evaluations)
    draft = choose_draft(found, draft_model)
    figures = figures_of(found, draft)
    header = figures[0].evaluation.header
    base_model = target_name or (header["target"] if is_on_hub(header["target"]) else None)
    target_name = target_name or header["target"]
    draft_name = draft_name or (draft and (header["drafts"].get(draft) or draft))
    repository = None if push_to_hub is None else _Repository(push_to_hub, token, revision)
    readme = None if path is None else Path(path)
    if readme is not None:
        readme = readme if readme.suffix == ".md" else readme / "README.md"
        files.check_output("`path`:", readme, makes_folders=True)
    existing, repo = _read(readme) if repository is None else repository.read()
    title, of_card = _short(target_name), repo or push_to_hub or draft_name or target_name
    if draft_name is not None:
        short = _short(draft_name)
        title = f"{title} with the draft {short}" if repo is not None else f"{short}, a draft for {title}"
    text = edit(
        existing,
        "card",
        escaped(title),
        render(
            "card.md",
            target=target_name,
            draft=draft_name,
            usage=usage(target_name, draft_name, repo, figures),
            **shown(found, draft),
        ),
        lambda metadata: _metadata(metadata, figures, _short(of_card), base_model, draft_name),
    )
    if repository is not None:
        repository.write(text, create_pr)
    elif readme is not None:
        readme.parent.mkdir(parents=True, exist_ok=True)
        files.write(readme, text)
    return text


def _read(readme: Path | None) -> tuple[str, str | None]:
    """The card that is there, and the name by which the pair is loaded, where a pairing lies beside it."""
    if readme is None:
        return "", None
    text = readme.read_bytes().decode() if readme.exists() else ""
    return text, str(readme.parent) if (readme.parent / FILE_NAME).exists() else None


class _Repository:
    """A card on the Hub, at one commit: who changes it meanwhile is not overwritten."""

    def __init__(self, name: str, token: str | None, revision: str | None):
        self.name, self.revision, self.api = name, revision, HfApi(token=token)
        info = self.api.model_info(name, revision=revision)
        self.commit, self.files = info.sha, [file.rfilename for file in info.siblings or []]

    def read(self) -> tuple[str, str | None]:
        text = ""
        if "README.md" in self.files:
            text = Path(self.api.hf_hub_download(self.name, "README.md", revision=self.commit)).read_bytes().decode()
        return text, self.name if FILE_NAME in self.files else None

    def write(self, text: str, create_pr: bool) -> None:
        self.api.upload_file(
            path_or_fileobj=text.encode(),
            path_in_repo="README.md",
            repo_id=self.name,
            revision=self.revision,
            parent_commit=self.commit,
            create_pr=create_pr,
            commit_message="Speculative decoding: what was measured",
        )


def _short(name: str) -> str:
    return Path(name).name or Path(name).resolve().name


def _metadata(
    existing: dict[str, Any], figures: list[Figure], model_name: str, base_model: str | None, draft_name: str | None
) -> dict[str, Any]:
    """The keys to set; what a user set already, other than lists that grow, stays."""
    tags = ["speculative-decoding", *(["draft-model"] if draft_name else [])]
    index = _model_index(existing.get("model-index") or [], figures, model_name, draft_name)
    return with_tags(existing, tags, base_model) | {"model-index": index}


def _model_index(existing: list[Any], figures: list[Figure], model_name: str, draft_name: str | None) -> list[Any]:
    """The results with ours; those of others stay as they are, also where huggingface_hub would merge them with ours."""
    ours: list[Any] = []
    for use_case in dict.fromkeys(figure.use_case for figure in figures):
        # One at a time: of several on one data set, huggingface_hub would keep the first one's name and arguments.
        of_case = [figure for figure in figures if figure.use_case == use_case]
        results = [result for figure in of_case for result in _results(figure, draft_name)]
        ours += eval_results_to_model_index(model_name, results)[0]["results"]
    if not existing:
        return [{"name": model_name, "results": ours}]
    kept = [model | {"results": [r for r in model.get("results") or [] if not _is_ours(r)]} for model in existing]
    kept[0]["results"] = [*kept[0]["results"], *ours]
    return kept


def _is_ours(result: dict[str, Any]) -> bool:
    metrics = result.get("metrics") or []
    return bool(metrics) and all("hf_speculative" in (metric.get("args") or {}) for metric in metrics)


def _results(figure: Figure, draft_name: str | None) -> list[EvalResult]:
    dataset = figure.evaluation.header["dataset"]
    metrics = {
        "mean_acceptance_length": ("Mean acceptance length, bonus token included", figure.mean_acceptance_length),
        "draft_acceptance_rate": ("Share of draft tokens accepted", figure.draft_acceptance_rate),
        "speedup": ("Speedup over plain decoding", figure.speedup.median),
    }
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Text Generation",
            dataset_type=dataset["name"] if is_on_hub(dataset["name"]) else figure.use_case,
            dataset_name=figure.use_case,
            dataset_config=dataset["config"],
            dataset_split=dataset["split"],
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 4),
            metric_args=figure.conditions(draft_name),  # dataset_args would be kept once for each data set
        )
        for kind, (name, value) in metrics.items()
        if value is not None
    ]
