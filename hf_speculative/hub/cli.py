"""The commands `hf-speculative card`, `export` and `export-generate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..command.interrupts import ends_at_once
from ..command.settings import setting, with_settings


@dataclass(frozen=True)
class CardOptions:
    """Options of `card`."""

    results: list[str] = setting(..., "Results of `eval`; `chat=file.jsonl` names the use case.", is_argument=True)
    output: Path | None = setting(None, "README.md to write or edit, or its folder. Default: print.", "--output", "-o")
    push_to_hub: str | None = setting(None, "Edit the card of this Hub repository instead, in a commit.")
    draft_model: str | None = setting(None, "Which draft to use, if several were evaluated.")
    target_name: str | None = setting(None, "The target's name on the Hub, if evaluated from a folder.")
    draft_name: str | None = setting(None, "The draft's name on the Hub, if evaluated from a folder.")


@with_settings(CardOptions)
def card(settings: CardOptions) -> None:
    """Write a model card for a target and its draft, from evaluations.

    The card has metadata for the Hub, acceptance lengths, the speed with hardware and command, and lines of code to paste. In
    an existing card, only what an earlier run wrote is replaced.

    Print one:  hf-speculative card results.jsonl

    Two kinds of prompts, into the folder of the pair:  hf-speculative card code=humaneval.jsonl chat=mtbench.jsonl -o my-pair

    On the Hub:  hf-speculative card results.jsonl --push-to-hub org/my-draft
    """
    with ends_at_once():  # not above, since it imports torch: `--help` answers at once
        from . import card as cards
        from .card import by_use_case, choose_draft

    given = dict(vars(settings))
    found, output = by_use_case(_by_use_case(given.pop("results"))), given.pop("output")
    text = cards.card(found, output, **given)
    place = settings.push_to_hub or output
    if place is None:
        print(text, end="")
    else:
        Console(highlight=False, soft_wrap=True).print(f"wrote the card of {place}", markup=False)
    header = next(iter(found.values())).header
    draft = header["drafts"].get(choose_draft(found, settings.draft_model))
    for role, name in (("target", settings.target_name or header["target"]), ("draft", settings.draft_name or draft)):
        if name is not None and Path(name).is_dir():
            note = f"The card names the {role} by a folder of this machine, {name}: --{role}-name gives its name on the Hub."
            Console(stderr=True, highlight=False, soft_wrap=True).print(note, markup=False)


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export`."""

    head: str = setting(..., "The draft head: a Hub name or a folder.", is_argument=True)
    folder: Path = setting(..., "The folder to write to.", is_argument=True)
    layout: str = setting("speculators", "speculators for vLLM, eagle for SGLang, or z-lab for DFlash heads.")
    target_name: str | None = setting(
        None,
        "The target's name on the Hub or its folder, written into speculators' config: vllm serve FOLDER loads it from there. "
        "Default: what the head's own config names, if it does.",
    )


@with_settings(ExportOptions)
def export(settings: ExportOptions) -> None:
    """Write a draft head in another layout. Its tensors stay the same, bit for bit.

    For vLLM:  hf-speculative export yuhuili/EAGLE3-LLaMA3.1-Instruct-8B my-head --target-name meta-llama/Llama-3.1-8B-Instruct

    For SGLang:  hf-speculative export my-head for-sglang --layout eagle
    """
    with ends_at_once():
        from .export import export_head, target_named

    written = export_head(settings.head, settings.folder, settings.layout, settings.target_name)
    Console(highlight=False, soft_wrap=True).print(f"wrote {written}", markup=False)
    if settings.layout == "speculators" and target_named(written) is None:
        note = f"Its config names no target, by which vllm serve {written} would find it: --target-name writes one."
        Console(stderr=True, highlight=False, soft_wrap=True).print(note, markup=False)


@dataclass(frozen=True)
class GenerateOptions:
    """Options of `export-generate`."""

    folder: Path = setting(..., "The folder to write to, which may hold a model's weights.", is_argument=True)
    repo_id: str | None = setting(None, "The Hub repository it is for, which its README will name.")


@with_settings(GenerateOptions)
def export_generate(settings: GenerateOptions) -> None:
    """Write a custom_generate/ folder, which transformers runs by itself: speculative decoding without `attach`.

    After  hf-speculative export-generate my-repo  this works, from the folder or once it is on the Hub:

        model.generate(**inputs, custom_generate="my-repo", trust_remote_code=True, draft_model=draft)

    With weights in the folder, transformers' own from_pretrained gives a model that speculates:

        AutoModelForCausalLM.from_pretrained("my-repo", trust_remote_code=True).generate(**inputs)

    Calls that name no draft have the one that the folder's speculative_config.json names.
    """
    with ends_at_once():
        from . import export

    code = export.export_generate(**vars(settings))
    Console(highlight=False, soft_wrap=True).print(f"wrote {code} and {settings.folder / 'README.md'}", markup=False)


def _by_use_case(results: list[str]) -> Any:
    """Files, by use case where all are named."""
    unnamed = [text for text in results if "=" not in text or Path(text).exists()]
    if len(unnamed) == len(results):
        return results
    if unnamed:
        raise ValueError(f"{unnamed[0]}: name the use case of every file, as in chat=file.jsonl, or of none.")
    found = dict(text.split("=", 1) for text in results)
    if len(found) < len(results):
        raise ValueError(f"two files for one use case: {', '.join(results)}.")
    return found
