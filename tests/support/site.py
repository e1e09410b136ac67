"""The documentation as a site: built, served on loopback, its files and links listed."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> None:
    """Builds the site strictly: a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the folder on loopback."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Page(HTMLParser):
    """What a page points to, and what can be pointed to in it.

    Attributes:
        links: of `a`; assets: what the page itself asks for.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.assets, self.names = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and (href := values.get("href")):
            self.links.append(href)
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev") and (href := values.get("href")):
            self.assets.append(href)
        elif src := values.get("src"):
            self.assets.append(src)


def pages(folder: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(folder.rglob("*.html"))}


def broken(folder: Path) -> list[str]:
    """Links and assets inside the site that lead nowhere, each as `page: link`."""
    known, found = pages(folder), []
    for path, page in known.items():
        if path.name == "404.html":  # served at any depth, so its links start at the root
            continue
        for link in page.links + page.assets:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            is_there = target.is_file() and (not fragment or target not in known or fragment in known[target].names)
            if not is_there:
                found.append(f"{path.relative_to(folder)}: {link}")
    return found


def foreign_assets(folder: Path) -> list[str]:
    """What pages would ask of other hosts."""
    return [asset for page in pages(folder).values() for asset in page.assets if urlsplit(asset).netloc]
