"""Pages looked at in a headless Chromium: what they measure, and what holds for every one of them."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PHONE, DESKTOP = 360, 1200
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
#: of a page: how wide it is, the luminance of its paper, and the least contrast of a text with where it is
MEASURED = f"""() => {{
{CONTRAST}
const paper = luminance(["white", getComputedStyle(document.body).backgroundColor]);
return [document.documentElement.scrollWidth, paper, worst(document, window)];
}}"""
OPEN_ALL = "() => { for (const details of document.querySelectorAll('details')) details.open = true; }"


@contextmanager
def chromium():
    """The browser; without one the test is skipped, but in CI, where it fails."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `test` is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no browser: install one of {', '.join(NAMES)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def opened(browser, width: int, addresses: tuple[str, ...], scheme: str = "light"):
    """An empty page, and a list to which comes what it says, what fails, and what it asks of other addresses."""
    viewport = {"width": width, "height": 800}
    page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    page.on("response", lambda answer: answer.status < 400 or said.append(f"{answer.status} {answer.url}"))
    page.on("request", lambda request: request.url.startswith(addresses) or said.append(request.url))
    return page, said


def check(page, scheme: str) -> None:
    """It fits and can be read."""
    width, paper, (ratio, text) = page.evaluate(MEASURED)
    where = f"{page.url}, {page.viewport_size['width']} px, {scheme}"
    assert width <= page.viewport_size["width"], f"{where}: {width} px wide"
    assert paper < 0.05 if scheme == "dark" else paper > 0.9, f"{where}: paper {paper:.2f}"
    assert ratio >= 4.5, f"{where}: {ratio:.2f} at {text}"


def look(browser, path: Path, width: int, scheme: str, collect: str) -> SimpleNamespace:
    """A file, everything folded opened, after the checks of pages: its text, and what the function `collect` finds."""
    address = path.resolve().as_uri()
    page, said = opened(browser, width, (address, "data:"), scheme)
    page.goto(address)
    page.evaluate(OPEN_ALL)
    check(page, scheme)
    assert not said and not page.evaluate("() => 'hacked' in window")
    return SimpleNamespace(text=page.inner_text("body"), found=page.evaluate(f"() => ({collect})(document)"))
