"""The text of a card: tables of acceptance and speed, how they were measured, and code to paste."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..call.option_table import IN_CALL
from ..measuring import Evaluation, Setting
from ..measuring.render import result_table, wording
from .figures import data_set_name

#: what examples continue, and what they ask a model with a chat template
PROMPT, QUESTION = "def main():", "What is a hash table?"


def usage(target: str, is_chat: bool, draft: str | None = None, repo: str | None = None, best: Setting | None = None) -> str:
    """Lines to paste: transformers' pipeline with a draft, with a repository that names one, or under a setting."""
    said = f"[{{'role': 'user', 'content': {QUESTION!r}}}]" if is_chat else repr(PROMPT)
    found = "['generated_text'][-1]['content']" if is_chat else "['generated_text']"
    options = "" if best is None else _keywords(best.shown_options)
    model = repr(target) if repo is None else f"hf_speculative.from_pretrained({repo!r}), tokenizer={repo!r}"
    named = "" if draft is None else f", draft_model={draft!r}"
    attached = f"hf_speculative.attach(pipe.model{named})\n" if repo is None else ""
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
    return {
        "sections": [_with_draft(section, draft) for section in result_table.sections(found)],
        "measured": [(name, data_set_name(one), wording.about(one)) for name, one in found.items()],
        "commands": list(dict.fromkeys(without_folders(one.environment["command"]) for one in found.values())),
    }


def _with_draft(section: result_table.Section, draft: str | None) -> result_table.Section:
    """Without rivals, and without other drafts."""
    settings = ((totals, totals.setting) for totals in section.totals)
    kept = [totals for totals, setting in settings if setting.rival is None and setting.draft in (None, draft)]
    return replace(section, totals=kept)


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
