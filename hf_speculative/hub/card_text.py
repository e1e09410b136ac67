"""What a card says: tables of acceptance lengths and speed, where they were measured, and four lines to paste."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..call.option_table import IN_CALL
from ..measuring import Evaluation
from ..measuring.settings import temperature_name
from .figures import Figure, data_set_name
from .readme import code, escaped

#: what examples continue, and what they ask a model with a chat template
PROMPT, QUESTION = "def main():", "What is a hash table?"


def pipeline_lines(target: str, draft: str, is_chat: bool) -> str:
    """Four lines to paste: transformers' pipeline with a draft attached."""
    said = f"[{{'role': 'user', 'content': {QUESTION!r}}}]" if is_chat else repr(PROMPT)
    found = "['generated_text'][-1]['content']" if is_chat else "['generated_text']"
    return f"""import hf_speculative, transformers
pipe = transformers.pipeline('text-generation', model={target!r})
hf_speculative.attach(pipe.model, draft_model={draft!r})
print(pipe({said}, max_new_tokens=64)[0]{found})"""


def usage(target: str, draft: str | None, repo: str | None, figures: list[Figure]) -> str:
    """Lines to paste: from a repository that names its draft, from both models, or of one model."""
    is_chat = bool(figures[0].evaluation.header.get("is_chat"))
    if repo is None and draft is not None:
        return pipeline_lines(target, draft, is_chat)
    name, loader, call, options = repo, "hf_speculative.from_pretrained", "model.generate(", ""
    if name is None:
        best = max(figures, key=lambda figure: figure.speedup.median).setting
        name, loader, call = (
            target,
            "transformers.AutoModelForCausalLM.from_pretrained",
            "hf_speculative.generate(model, ",
        )
        options = _keywords(best.shown_options)
    inputs, asked = f"tokenizer({PROMPT!r}, return_tensors='pt').to(model.device)", ""
    if is_chat:
        said = f"[{{'role': 'user', 'content': {QUESTION!r}}}]"
        how = "add_generation_prompt=True, return_tensors='pt', return_dict=True"
        inputs, asked = "inputs", f"inputs = tokenizer.apply_chat_template({said}, {how}).to(model.device)\n"
    return f"""import hf_speculative, transformers
model = {loader}({name!r})
tokenizer = transformers.AutoTokenizer.from_pretrained({name!r})
{asked}print(tokenizer.decode({call}**{inputs}, max_new_tokens=64{options})[0]))"""


def _keywords(options: Mapping[str, Any]) -> str:
    """Options as keywords of `generate`, after a comma; what is no keyword goes into a config."""
    own = "".join(f", {name}={value!r}" for name, value in options.items() if name in IN_CALL)
    settings = ", ".join(f"{name}={value!r}" for name, value in options.items() if name not in IN_CALL)
    return f"{own}, speculative_config=hf_speculative.SpeculativeConfig({settings})" if settings else own


def shown(found: Mapping[str, Evaluation], figures: list[Figure]) -> dict[str, Any]:
    return {
        "figures": figures,
        "temperature_name": temperature_name,
        "acceptance": _acceptance(figures),
        "recommended": [(name, [str(r) for r in one.recommendations]) for name, one in found.items()],
        "sources": [_source(name, one, [f for f in figures if f.use_case == name]) for name, one in found.items()],
        "places": _places(found),
    }


def _acceptance(figures: list[Figure]) -> list[dict[str, Any]]:
    """For each source, temperature and set of options a table: rows of use cases, columns of draft lengths."""
    tables: dict[str, dict[str, dict[int, float | None]]] = {}
    for figure in figures:
        setting = figure.setting
        name = f"{setting.drafter}, {temperature_name(setting.temperature)}{setting.further_options}"
        row = tables.setdefault(name, {}).setdefault(figure.use_case, {})
        row[setting.num_draft_tokens or setting.max_draft_tokens or 0] = figure.mean_acceptance_length
    shown = []
    for name, table in tables.items():
        lengths = sorted({length for row in table.values() for length in row}, key=lambda length: length or 10**9)
        rows = [(use_case, [row.get(length) for length in lengths]) for use_case, row in table.items()]
        shown.append({"name": name, "lengths": [length or "adaptive" for length in lengths], "rows": rows})
    return shown


def _source(use_case: str, evaluation: Evaluation, figures: list[Figure]) -> Markup:
    dataset = evaluation.header["dataset"]
    parts = [code(data_set_name(evaluation))] + [
        escaped(str(dataset[key])) for key in ("config", "split") if dataset[key]
    ]
    parts.append(f"{max((figure.totals.num_prompts for figure in figures), default=0)} prompts")
    if evaluation.bad_rows:
        parts.append(f"{len(evaluation.bad_rows)} rows could not be used")
    if not evaluation.is_complete:
        parts.append("unfinished")
    parts += [code(f"{name}={value}") for name, value in evaluation.header["generate"].items() if _is_told(name, value)]
    exact = [figure.totals for figure in figures if figure.totals.num_identical is not None]
    if exact:
        same, total = sum(t.num_identical or 0 for t in exact), sum(t.num_prompts for t in exact)
        parts.append(f"{same} of {total} greedy texts identical to plain decoding's")
    return Markup(f"{escaped(use_case)}: {', '.join(parts)}.")


def _is_told(name: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and not name.endswith("_token_id")


def without_folders(command: str) -> str:
    """A card is for others, who do not have this machine's folders.

    Raises:
        ValueError: it is no command.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"the results name a command that is none ({error}): {command!r}.") from error
    return shlex.join(Path(word).name if Path(word).is_absolute() else word for word in words)


def _places(found: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """Where it was measured, each place once, with the commands that ran there."""
    places: dict[str, list[str]] = {}
    for evaluation in found.values():
        where = evaluation.environment
        versions = [f"{name} {where[name]}" for name in ("hf_speculative", "transformers", "torch", "python")]
        cores = f"cores: {where['cores']}, threads: {where['threads']}"
        cuda = [f"CUDA {where['cuda']}"] if where.get("cuda") else []
        parts = [where["device"], cores, evaluation.header["dtype"], ", ".join([*versions, *cuda]), where["system"]]
        hardware = "; ".join(parts)
        commands = places.setdefault(hardware, [])
        command = without_folders(where["command"])
        if command not in commands:
            commands.append(command)
    return [{"hardware": hardware, "commands": commands} for hardware, commands in places.items()]
