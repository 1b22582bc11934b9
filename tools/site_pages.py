"""The Markdown of the repository, laid out for the site.

Pages are written for GitHub. This module gives each its place on the site and changes what differs
there: where links lead, the names of headings, and blank lines that the site's Markdown needs.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from check_links import CODE, ELSEWHERE, HEADING, INLINE, REFERENCE, heading_anchor, tell_code

LIST_ITEM = re.compile(r"^ {0,3}(?:[-*]|\d+\.) ")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "bash"}


class Site:
    """Where files of the repository stand on the site, and which are still to be written."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root, self.out = root, out
        self.waiting: list[Path] = []
        self.placed: dict[Path, Path] = {}

    def place(self, source: Path) -> Path:
        """The place of a file or folder on the site; it is written if it has not been."""
        if source.is_dir() and (source / "README.md").is_file():
            source = source / "README.md"
        if source not in self.placed:
            self.placed[source] = place_of(source, self.root)
            self.waiting.append(source)
        return self.placed[source]

    def write_all(self) -> None:
        """Write what has been placed, and what it links to."""
        while self.waiting:
            self._write(self.waiting.pop())

    def _write(self, source: Path) -> None:
        target = self.out / self.placed[source]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.write_text(self._list_folder(source))
        elif source.suffix == ".md":
            target.write_text(self.convert(source.read_text(), source))
        elif source.suffix == ".ipynb":
            text = show_notebook(json.loads(source.read_text()), target)
            target.write_text(self.convert(text, source))
        elif source.suffix in LANGUAGES:
            target.write_text(show_code(source, self.root))
        else:
            shutil.copyfile(source, target)

    def _list_folder(self, folder: Path) -> str:
        files = list_tracked(folder)
        lines = [f"- [{file.relative_to(folder)}]({self._link(folder, file)})" for file in files]
        return f"# {folder.relative_to(self.root)}\n\n" + "\n".join(lines) + "\n"

    def _link(self, page: Path, target: Path) -> str:
        here = self.placed[page].parent
        return relative(self.place(target), here)

    def convert(self, text: str, source: Path) -> str:
        """A page of the repository as the site needs it."""
        return "\n".join(separate_blocks(self._convert_lines(text, source))) + "\n"

    def _convert_lines(self, text: str, source: Path) -> Iterator[str]:
        found = dict[str, int]()
        for line, is_code in tell_code(text.splitlines()):
            yield line if is_code else name_heading(self._lead(line, source), line, found)

    def _lead(self, line: str, source: Path) -> str:
        """The line with its links leading to where the site has the files."""
        code = [match.span() for match in CODE.finditer(line)]

        def lead(match: re.Match[str]) -> str:
            target = match[1]
            if ELSEWHERE.match(target) or any(a <= match.start(1) < b for a, b in code):
                return match[0]
            path, hash_mark, anchor = unquote(target).partition("#")
            if not path:
                return match[0]
            link = self._link(source, (source.parent / path).resolve())
            return match[0].replace(target, f"{link}{hash_mark}{anchor}", 1)

        for kind in (INLINE, REFERENCE):
            line = kind.sub(lead, line)
        return line


def place_of(source: Path, root: Path) -> Path:
    """docs/X.md is X.md; docs/README.md is the index; all else is under repository/."""
    path = source.relative_to(root)
    path = path.relative_to("docs") if path.parts[0] == "docs" else Path("repository") / path
    if source.is_dir():
        return path / "index.md"
    if path.name == "README.md":
        return path.with_name("index.md")
    shown = {*LANGUAGES, ".ipynb"}
    return path.with_name(f"{path.name}.md") if path.suffix in shown else path


def relative(target: Path, folder: Path) -> str:
    """The link from a page in `folder` to `target`."""
    up = 0
    while folder != Path() and not target.is_relative_to(folder):
        folder, up = folder.parent, up + 1
    return "../" * up + target.relative_to(folder).as_posix()


def list_tracked(folder: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "."], cwd=folder, capture_output=True, check=True
    )
    return [folder / name for name in sorted(listed.stdout.decode().split("\0")) if name]


def show_code(source: Path, root: Path) -> str:
    name = source.relative_to(root).as_posix()
    return f"# {name}\n\n````{LANGUAGES[source.suffix]}\n{source.read_text()}````\n"


def show_notebook(notebook: Any, page: Path) -> str:
    """A notebook as a page: its texts, its code, and what that printed and drew."""
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif picture := output.get("data", {}).get("image/png"):
                file = page.with_name(f"{page.stem}-{number}.png")
                file.write_bytes(base64.b64decode("".join(picture)))
                parts.append(f'<img src="{file.name}" alt="What the code above draws">')
    return "\n\n".join(parts) + "\n"


def name_heading(line: str, original: str, found: dict[str, int]) -> str:
    """A heading with the name by which GitHub reaches it."""
    heading = HEADING.match(original)
    if not heading:
        return line
    name = heading_anchor(heading[1])
    count = found.get(name, 0)
    found[name] = count + 1
    return f"{line} {{#{name}-{count}}}" if count else f"{line} {{#{name}}}"


def separate_blocks(lines: Iterable[str]) -> Iterator[str]:
    """Blank lines before lists and tables that follow a paragraph; GitHub does without them."""
    before = ""
    for line, is_code in tell_code(lines):
        if not is_code and starts_block(before, line):
            yield ""
        yield line
        before = line


def starts_block(before: str, line: str) -> bool:
    if not before.strip() or before.startswith((" ", "#")):
        return False
    if LIST_ITEM.match(line):
        return not LIST_ITEM.match(before)
    return line.startswith("|") and not before.startswith("|")
