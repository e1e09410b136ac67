"""docs/assets/demo.svg, a recording of the demo for the README: `make recording`, on a quiet machine."""

import io
import re
from pathlib import Path

from rich.console import Console

from hf_speculative.command.terminal import loading
from hf_speculative.measuring.commands import demo

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "demo.svg"


def record() -> str:
    console = Console(record=True, width=120, file=io.StringIO(), highlight=False)
    with loading(Console(stderr=True)):
        loaded = demo.load()
    demo.show(console, loaded, num_tokens=72, repeats=3)
    text = console.export_svg(title="hf-speculative generate --demo", unique_id="demo")
    # In the reader's fonts: rich's own export would fetch one.
    text = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(record(), encoding="utf-8")
