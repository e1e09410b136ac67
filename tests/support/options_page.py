"""docs/options.md, written from the table of options: `python -m tests.support.options_page`."""

from pathlib import Path

from hf_speculative.call.option_table import CALL, GENERATION_CONFIG, GROUPS, Option

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
INTRO = """---
hide: [toc]
---
# Options

A call of `generate` takes `draft_model`, `num_draft_tokens`, `reproducible`, `grammar`, `tokenizer`, `streamer`,
`synced_gpus` and transformers' own names for drafting. The others are fields of `SpeculativeConfig`, given to
`attach(model, draft, config=...)` or, for one call, as
`speculative_config=...`. Below, keywords are bold, and a star marks what a `generation_config` may say as well.

An option is taken from the call, then from what was attached, then from the target's `generation_config`, then from the
draft's. A value out of range, an option without effect and a misspelt one raise before the first forward. Nothing is written
to a model's config.
"""
HEADER = "\n## {}\n\n| option | meaning | value | default |\n|---|---|---|---|\n"


def render() -> str:
    return INTRO + "".join(HEADER.format(title) + "".join(map(_row, rows)) for title, rows in GROUPS.items())


def _row(option: Option) -> str:
    """Keywords in bold, with a star what a generation_config may say."""
    own = f"**`{option.name}`**" if CALL in option.places else f"`{option.name}`"
    names = ", ".join([own, *(f"**`{name}`**" for name in option.aliases)])
    star = " \\*" if GENERATION_CONFIG in option.places else ""
    more = f" [More]({option.page})." if option.page else ""
    return f"| {names}{star} | {option.help}{more} | {option.type.text} | {option.default} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
