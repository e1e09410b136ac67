"""Pages looked at in a headless Chromium, as they are: a page of frames around them does the measuring."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-extensions",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE, DESKTOP = 360, 1200
#: a frame takes its colour scheme from the element it is in
AROUND = Path(__file__).with_suffix(".html")
CONTRAST = Path(__file__).with_name("contrast.js")
#: of a page: how wide it is, the luminance of its paper, and the least contrast of a text with where it is
MEASURED = f"""() => {{
{CONTRAST.read_text(encoding="utf-8")}
const paper = luminance(["white", getComputedStyle(document.body).backgroundColor]);
return [document.documentElement.scrollWidth, paper, worst(document, window)];
}}"""


@dataclass
class View:
    """A page at a width in a colour scheme, everything folded opened.

    Attributes:
        scroll_width: the most, each note having been shown once.
        is_dark: what the page is asked to be; `paper` is the luminance of its background, from 0 to 1.
        contrast: the least of any text with what is behind it; `least_contrast` says where.
        notes: of elements with a note, its text, what is shown of it on focus, and the contrast of that.
        is_hacked: a script set `window.hacked`.
        found: what `collect` returned.
    """

    page: str
    width: int
    scroll_width: int
    is_dark: bool
    paper: float
    contrast: float
    least_contrast: str
    notes: list[tuple[str, str, float]]
    num_requests: int
    is_hacked: bool
    text: str
    found: Any


def chromium() -> str:
    """The browser; without one the test is skipped, but in CI, where it fails."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        message = f"no browser: install one of {', '.join(NAMES)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return str(found)


def look(
    pages: list[tuple[Path, int, str]], folder: Path, collect: str = "doc => null"
) -> tuple[list[View], list[str]]:
    """Views of pages, each at a width and in the scheme `light` or `dark`, and what the console had to say.

    Args:
        collect: a JavaScript function of the document.
    """
    frames = [
        f'<iframe data-page="{path.name}" src="{path.resolve().as_uri()}" '
        f'style="border: 0; width: {width}px; height: 800px; color-scheme: {scheme}"></iframe>'
        for path, width, scheme in pages
    ]
    around = folder / "frames.html"
    text = AROUND.read_text(encoding="utf-8").replace("CONTRAST", CONTRAST.read_text(encoding="utf-8"))
    text = text.replace("FRAMES", "\n".join(frames)).replace("COLLECT", collect)
    around.write_text(text, encoding="utf-8")
    command = [chromium(), *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"]
    command += ["--allow-file-access-from-files", "--dump-dom", around.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    console = [line for line in done.stderr.decode(errors="replace").splitlines() if ":CONSOLE:" in line]
    seen = re.search(r"<title>([^<]+)</title>", done.stdout.decode())
    assert seen, f"nothing was measured: {console}"
    return [View(**view) for view in json.loads(unquote(seen[1]))], console


def check(views: list[View], console: list[str]) -> None:
    """What holds for every page: it fits, can be read, asks nothing of anyone, and runs nothing."""
    assert not console, console
    for view in views:
        where = f"{view.page}, {view.width} px, {'dark' if view.is_dark else 'light'}"
        assert view.scroll_width <= view.width, f"{where}: {view.scroll_width} px wide"
        assert view.paper < 0.05 if view.is_dark else view.paper > 0.9, f"{where}: paper {view.paper:.2f}"
        assert view.contrast >= 4.5, f"{where}: {view.contrast:.2f} at {view.least_contrast}"
        assert view.num_requests == 0 and not view.is_hacked, where
        for title, content, contrast in view.notes:
            assert title in content and contrast >= 4.5, f"{where}: {title!r} shown as {content!r}"
