"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml): pages of the root, and links in docstrings."""

import re
from pathlib import Path

from hf_speculative.measuring.render import suites

ROOT = Path(__file__).parents[2]
#: pages of the site that are files of the root
OF_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
#: a run of suites a file, as `bench --suite NAME --json` writes it
CONTRIBUTED = ROOT / "docs" / "contributed"


def on_page_markdown(markdown: str, page, **_) -> str:
    if page.file.src_uri == "contributed.md":
        return markdown + "".join(f"\n## {path.stem}\n\n{suites.text([suites.load(path)])}" for path in contributed())
    name = OF_ROOT.get(page.file.src_uri)
    return markdown if name is None else (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def contributed() -> list[Path]:
    return sorted(CONTRIBUTED.glob("*.json"))


def on_page_content(html: str, page, files, **_) -> str:
    """Docstrings name pages as they lie in the repository, `docs/caches.md`: on the site these are links."""

    def link(found: re.Match) -> str:
        target = files.get_file_from_path(found["page"])
        if target is None:
            return found[0]
        name = found["page"].removesuffix(".md").replace("-", " ")
        return f'<a href="{target.url_relative_to(page.file)}{found["place"] or ""}">{name}</a>'

    if not page.file.src_uri.startswith("api/"):
        return html
    return re.sub(r"\bdocs/(?P<page>[\w/-]+\.md)(?P<place>#[\w-]+)?", link, html)
