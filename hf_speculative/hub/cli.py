"""The commands `hf-speculative card`, `export`, `export-generate` and `export-vllm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..command.arguments import check_outputs, from_table
from ..command.interrupts import ends_at_once
from ..reports import files

RESULTS = typer.Argument(
    metavar="RESULTS...", help="Results files of `hf-speculative eval`; `chat=file.jsonl` names the use case."
)


def card(
    results: Annotated[list[str], RESULTS],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="README.md, or its folder, to write or edit. Default: print the card."),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(help="Edit the card of this Hub repository instead, in a commit.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Push as a pull request instead.")] = False,
    draft_model: Annotated[str | None, typer.Option(help="Which draft to use, if several were evaluated.")] = None,
    target_name: Annotated[
        str | None, typer.Option(help="The target's name on the Hub, if evaluated from a folder.")
    ] = None,
    draft_name: Annotated[
        str | None, typer.Option(help="The draft's name on the Hub, if evaluated from a folder.")
    ] = None,
) -> None:
    """Write a model card for a target and its draft, from evaluations.

    The card has metadata for the Hub, the acceptance length by use case and draft length, the speed with hardware and command,
    and four lines of code to paste. In an existing card, only what an earlier run wrote is replaced.

    Print one:  hf-speculative card results.jsonl

    Two kinds of prompts, into the folder of the pair:  hf-speculative card code=humaneval.jsonl chat=mtbench.jsonl -o my-pair

    On the Hub:  hf-speculative card results.jsonl --push-to-hub org/my-draft --create-pr
    """
    with ends_at_once():  # not above, since it imports torch: `--help` answers at once
        from . import card as cards
        from .figures import by_use_case, choose_draft

    if create_pr and push_to_hub is None:
        raise ValueError("--create-pr has no effect without --push-to-hub.")
    found = by_use_case(_by_use_case(results))
    text = cards.card(
        found,
        output,
        draft_model=draft_model,
        target_name=target_name,
        draft_name=draft_name,
        push_to_hub=push_to_hub,
        create_pr=create_pr,
    )
    if output is None and push_to_hub is None:
        print(text, end="")
    else:
        Console(highlight=False, soft_wrap=True).print(f"wrote the card of {push_to_hub or output}", markup=False)
    header = next(iter(found.values())).header
    draft = choose_draft(found, draft_model)
    named = {"target": target_name or header["target"], "draft": draft_name or header["drafts"].get(draft)}
    for role, name in named.items():
        if name is not None and Path(name).is_dir():
            note = f"The card names the {role} by a folder of this machine, {name}: --{role}-name gives its name on the Hub."
            Console(stderr=True, highlight=False, soft_wrap=True).print(note, markup=False)


def export(
    head: Annotated[str, typer.Argument(help="The draft head: a Hub name or a folder.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write to.")],
    layout: Annotated[
        str, typer.Option(help="speculators, which vLLM reads, eagle, which SGLang reads, or z-lab, of DFlash heads.")
    ] = "speculators",
    target_name: Annotated[
        str | None,
        typer.Option(
            help="The target's name on the Hub or its folder, written into speculators' config: vllm serve FOLDER loads it "
            "from there. Default: what the head's own config names, if it does."
        ),
    ] = None,
) -> None:
    """Write a draft head in another layout. Its tensors stay the same, bit for bit.

    For vLLM:  hf-speculative export yuhuili/EAGLE3-LLaMA3.1-Instruct-8B my-head --target-name meta-llama/Llama-3.1-8B-Instruct

    For SGLang:  hf-speculative export my-head for-sglang --layout eagle
    """
    with ends_at_once():
        from .head import export_head, target_named

    written = export_head(head, folder, layout, target_name)
    Console(highlight=False, soft_wrap=True).print(f"wrote {written}", markup=False)
    if layout == "speculators" and target_named(written) is None:
        note = f"Its config names no target, by which vllm serve {written} would find it: --target-name writes one."
        Console(stderr=True, highlight=False, soft_wrap=True).print(note, markup=False)


def export_generate(
    folder: Annotated[Path, typer.Argument(help="The folder to write to, which may hold a model's weights.")],
    draft_model: Annotated[
        str | None,
        typer.Option(
            help="The draft of calls that name none: a Hub name, or a subfolder such as ./draft. Default: the one in the "
            "folder's speculative_config.json."
        ),
    ] = None,
    num_draft_tokens: Annotated[int | None, from_table("num_draft_tokens")] = None,
    repo_id: Annotated[
        str | None, typer.Option(help="The Hub repository it is for, which its README will name.")
    ] = None,
) -> None:
    """Write a custom_generate/ folder, which transformers runs by itself: speculative decoding without `attach`.

    After  hf-speculative export-generate my-repo  this works, from the folder or once it is on the Hub:

        model.generate(**inputs, custom_generate="my-repo", trust_remote_code=True, draft_model=draft)

    With weights in the folder, transformers' own from_pretrained gives a model that speculates:

        AutoModelForCausalLM.from_pretrained("my-repo", trust_remote_code=True).generate(**inputs)
    """
    with ends_at_once():
        from . import export

    code = export.export_generate(folder, draft_model=draft_model, num_draft_tokens=num_draft_tokens, repo_id=repo_id)
    Console(highlight=False, soft_wrap=True).print(f"wrote {code} and {folder / 'README.md'}", markup=False)


def export_vllm(
    results: Annotated[list[str], RESULTS],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the speculative config to this JSON file as well.")
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option(help="Consider this draft only, named as in the evaluation. Default: the best setting of all."),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="The temperature, if several were evaluated.")] = None,
    target_name: Annotated[str | None, typer.Option(help="Use this name or folder for the target.")] = None,
    draft_name: Annotated[str | None, typer.Option(help="Use this name or folder for the draft.")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A further key of vLLM's speculative config. Repeat the option for several.",
        ),
    ] = None,
) -> None:
    """Print the `vllm serve` command for the best setting of an evaluation: the method, and the draft length.

    hf-speculative export-vllm results.jsonl

    hf-speculative export-vllm results.jsonl --set draft_tensor_parallel_size=1 --output speculative.json
    """
    check_outputs(output=output)
    with ends_at_once():
        from . import vllm

    settings = vllm.export_vllm(
        _by_use_case(results),
        draft_model=draft_model,
        temperature=temperature,
        target_name=target_name,
        draft_name=draft_name,
        **dict(map(_field, fields or [])),
    )
    print(settings.command)
    if output is not None:
        files.write(output, json.dumps(settings.config, indent=2) + "\n")
    for note in settings.notes:
        Console(stderr=True, highlight=False).print(note, markup=False)


def _by_use_case(results: list[str]) -> Any:
    """Files, by use case where all are named."""
    pairs = [text.partition("=") for text in results]
    named = [bool(sign) and not Path(text).exists() for text, (_, sign, _) in zip(results, pairs, strict=True)]
    if not any(named):
        return results
    if not all(named):
        raise ValueError(
            f"{results[named.index(False)]}: name the use case of every file, as in chat=file.jsonl, or of none."
        )
    found = {name: path for name, _, path in pairs}
    if len(found) < len(pairs):
        raise ValueError(f"two files for one use case: {', '.join(results)}.")
    return found


def _field(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--set {text}: write KEY=VALUE.")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value  # text needs no quotes
