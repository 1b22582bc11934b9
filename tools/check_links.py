"""Check that every relative link in the Markdown files resolves.

    python tools/check_links.py [FOLDER]

A link is right if its file or folder exists and, with a `#heading`, if the page has that heading.
Links to other sites are not followed. Files that git ignores are left out.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]^][^\]]*\]:\s*<?([^\s>]+)>?")
IMAGE = re.compile(r"<(?:img|a)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)[\"']", re.IGNORECASE)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
ANCHOR = re.compile(r"<a\b[^>]*?\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else ".").resolve()
    pages = find_pages(root)
    broken = [line for page in pages for line in check_page(page, root)]
    for line in broken:
        print(line, file=sys.stderr)
    if not broken:
        print(f"{len(pages)} Markdown files: all relative links resolve")
    return 1 if broken else 0


def find_pages(root: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = {name for name in listed.stdout.decode().split("\0") if name}
    return [root / name for name in sorted(names) if (root / name).is_file()]


def check_page(page: Path, root: Path) -> Iterator[str]:
    """One line of text for every link on `page` that leads nowhere."""
    for number, line in prose_lines(page):
        for target in link_targets(line):
            if problem := find_problem(page, target, root):
                yield f"{page.relative_to(root)}:{number}: {target}: {problem}"


def prose_lines(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines outside fenced code."""
    lines = tell_code(page.read_text(encoding="utf-8").splitlines())
    return ((number, line) for number, (line, is_code) in enumerate(lines, 1) if not is_code)


def tell_code(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to fenced code."""
    fence = ""
    for line in lines:
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
        elif not fence:
            yield line, False
            continue
        yield line, True


def link_targets(line: str) -> list[str]:
    text = CODE.sub("", line)
    return [match[1] for kind in (INLINE, REFERENCE, IMAGE) for match in kind.finditer(text)]


def find_problem(page: Path, target: str, root: Path) -> str | None:
    if ELSEWHERE.match(target):
        return None
    path, _, anchor = unquote(target).partition("#")
    found = (page.parent / path).resolve() if path else page
    if not found.is_relative_to(root):
        return "outside the project"
    if not found.exists():
        return "no such file"
    if anchor and found.suffix == ".md" and anchor not in page_anchors(found):
        return "no such heading"
    return None


def page_anchors(page: Path) -> set[str]:
    """The names by which GitHub reaches the headings of a page."""
    found: dict[str, int] = {}
    anchors = set()
    for _, line in prose_lines(page):
        anchors.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            name = heading_anchor(heading[1])
            anchors.add(f"{name}-{found[name]}" if name in found else name)
            found[name] = found.get(name, 0) + 1
    return anchors


def heading_anchor(heading: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
