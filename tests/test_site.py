"""The documentation's site as readers see it: whole, on a phone, light and dark, without asking anything of anyone."""

import os
import re

import pytest
from filelock import FileLock

from hf_speculative import theory
from tests.support import browser, commands_page, site

pytest.importorskip("material", reason="the extra `docs` is not installed")

DOCS = site.ROOT / "docs"
#: what mkdocs-material calls them
SCHEMES = {"light": "default", "dark": "slate"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The site, built once, whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(base / "site.lock"):
        if not (base / "site").exists():
            site.build(base / "site")
    return base / "site"


@pytest.mark.slow
def test_no_link_is_broken_and_nothing_is_asked_of_others(folder):
    assert len(site.pages(folder)) > 30
    assert site.broken(folder) == [] and site.foreign_assets(folder) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x">1</a><a href="c.html">2</a><img src="//host/i.png">')
    (tmp_path / "b.html").write_text('<p id="y"></p><a href="a.html">3</a><a href="#y">4</a>')
    assert site.broken(tmp_path) == ["a.html: b.html#x", "a.html: c.html"]
    assert site.foreign_assets(tmp_path) == ["//host/i.png"]


@pytest.mark.release
def test_all_pages_can_be_read_on_a_phone(folder):
    """Each fits on a phone and can be read, in both schemes."""
    paths = [str(file.relative_to(folder)) for file in site.pages(folder) if file.name != "404.html"]
    with site.served(folder) as address, browser.chromium() as chromium:
        page, said = browser.opened(chromium, browser.PHONE, (address, "data:"))
        for path in paths:
            page.emulate_media(color_scheme="light")
            page.goto(address + path.removesuffix("index.html"))
            page.add_style_tag(content="* { transition: none !important }")
            for scheme, name in SCHEMES.items():
                page.emulate_media(color_scheme=scheme)
                page.locator(f"body[data-md-color-scheme={name}]").wait_for()
                browser.check(page, scheme)
        assert not said


@pytest.mark.slow
def test_every_public_name_has_its_entry(folder):
    import hf_speculative

    entries = {name.split(".")[-1] for path in (folder / "api").rglob("*.html") for name in site.Page(path).names}
    assert set(hf_speculative.__all__) <= entries


@pytest.mark.slow
def test_docstrings_link_to_the_pages_that_they_name(folder):
    texts = {path: path.read_text(encoding="utf-8") for path in (folder / "api").rglob("*.html")}
    assert 'href="../../supported-models/">supported models</a>' in texts[folder / "api" / "generate" / "index.html"]
    assert not {path for path, text in texts.items() if re.search(r"docs/[\w-]+\.md", text)}


def test_the_page_of_commands_is_theirs():
    text = commands_page.PAGE.read_text(encoding="utf-8")
    assert text == commands_page.render(), "stale: `python -m tests.support.commands_page`"
    assert "## `hf-speculative eval`" in text and "--install-completion`:" not in text
    assert "...\n" not in text.split("##")[0]


def test_the_table_of_speedups_is_the_theory_s():
    """docs/draft-length.md: for a chance of being right and a cost, the best draft length and its speedup."""
    lines = (DOCS / "draft-length.md").read_text(encoding="utf-8").splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith("| | c = ")]
    costs = [float(cell.split("=")[1]) for cell in lines[start].split("|")[2:-1]]
    for line in lines[start + 2 : start + 7]:
        label, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        alpha = int(label.split()[1]) / 100
        for cost, cell in zip(costs, cells, strict=True):
            best = max(range(60), key=lambda k, a=alpha, c=cost: theory.walltime_factor(a, k, c))
            assert cell == f"{theory.walltime_factor(alpha, best, cost):.2f}x ({best})"
