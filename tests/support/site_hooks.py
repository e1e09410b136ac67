"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml): pages that lie in the root of the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
#: pages of the site that are files of the root
OF_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_page_markdown(markdown: str, page, **_) -> str:
    name = OF_ROOT.get(page.file.src_uri)
    return markdown if name is None else (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
