"""Build the documentation site.

    python tools/build_site.py        # from docs/ into site/

Pages are laid out in build/site/, the reference is made from the code, and Zensical makes the site,
with its warnings as errors. Then every link of the built site is followed, and nothing in it may
ask another host for anything.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from site_pages import Site
from site_reference import write_reference

ROOT = Path(__file__).resolve().parent.parent
LAID_OUT, BUILT = ROOT / "build" / "site", ROOT / "site"
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples", "notebooks")
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
# Attributes by which a browser loads something by itself, unlike a link that a reader follows.
LOADING = {"src", "srcset", "data", "poster"}


def main() -> int:
    lay_out(LAID_OUT)
    shutil.rmtree(BUILT, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        return code
    problems = list(check_site(BUILT))
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        pages = len(list(BUILT.rglob("*.html")))
        print(f"{pages} pages in {BUILT.name}/: open {BUILT.name}/index.html")
    return 1 if problems else 0


def lay_out(folder: Path) -> None:
    """The Markdown of the site: pages of the repository, and the generated reference."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = Site(ROOT, folder)
    for page in [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in BESIDE)]:
        site.place(page)
    site.write_all()
    write_reference(folder / "reference")


class Page(HTMLParser):
    """The links, loads and names of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            elif key == "href" and value and tag == "a":
                self.links.append(value)
            elif value and (key in LOADING or (key == "href" and tag == "link")):
                self.loads.append(value)


def check_site(folder: Path) -> Iterator[str]:
    """One line for every link that leads nowhere and every load from another host."""
    pages = {path.resolve(): Page(path.read_text()) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        yield from (f"{path.name}: loads {load}" for load in page.loads if ELSEWHERE.match(load))
        for link in [*page.links, *page.loads]:
            if not ELSEWHERE.match(link) and not leads_somewhere(link, path, pages):
                yield f"{path.relative_to(folder.resolve())}: {link} leads nowhere"
    for style in folder.rglob("*.css"):
        if re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text()):
            yield f"{style.relative_to(folder)}: loads from another host"


def leads_somewhere(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    place, anchor = urldefrag(unquote(link))
    target = (path.parent / place.partition("?")[0]).resolve() if place else path
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return False
    return not anchor or target not in pages or anchor in pages[target].names or anchor == "__top"


if __name__ == "__main__":
    sys.exit(main())
