"""docs/options.md, written from the table of options: `python -m tests.support.options_page`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hf_speculative.call.option_table import HANDED_ON, OPTIONS, Option
from hf_speculative.call.options import LENGTH_OPTIONS
from hf_speculative.call.sources import SOURCES, arguments_with

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
INTRO = """---
hide: [toc]
---
# Options

What `hf_speculative.generate`, an attached model's `generate` and `generate_batches` take beside transformers' own keywords;
what `SpeculativeConfig` holds, for `attach` or as `speculative_config=` in a call; and what a `generation_config` may say.

An option is taken from the call, then from what was attached, then from the target's `generation_config`, then from the
draft's. Before the first forward, a value of another type or out of range raises, as does an option that would have no effect
or that is misspelt. Numpy's integers and truth values are taken for Python's; `True` is no number, and 1 is not `True`.
Nothing is ever written to a model's config.

This page is written from the table in `hf_speculative/call/option_table.py` by `make docs`.

| option | meaning | value (*default*) | given in | for drafts by |
|---|---|---|---|---|
"""


def render() -> str:
    return INTRO + "".join(map(_row, OPTIONS))


def _row(option: Option) -> str:
    names = " = ".join(f"`{name}`" for name in option.names)
    meaning = option.help + (f" [More]({option.page})." if option.page else "")
    value = f"{option.type.text} (*{option.default}*)"
    cells = (names, meaning, value, ", ".join(option.places), _effect(option))
    return f"| {' | '.join(cells)} |\n"


def _effect(option: Option) -> str:
    """The sources of drafts that an option has an effect on."""
    if option.is_source:
        return "itself"
    if option.name in LENGTH_OPTIONS[:2]:
        with_number = (kind.argument for kind in SOURCES if fields(kind)[0].name == "num_draft_tokens")
        return f"all but {_listed(with_number)}"
    return _listed([] if option.without_draft == HANDED_ON else arguments_with(option.name)) or "all"


def _listed(names) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(render())
