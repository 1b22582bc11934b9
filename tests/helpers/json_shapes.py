"""docs/json.md read as a schema: the tables of its shapes, and whether a document has one."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+?) \|", re.MULTILINE)
SIMPLE = {
    "text": lambda value: isinstance(value, str),
    "number": lambda value: type(value) in (int, float),
    "count": lambda value: type(value) is int and value >= 0,
    "true or false": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "anything": lambda value: True,
    "null": lambda value: value is None,
}


def read_commands() -> dict[str, str]:
    """Command -> what it prints."""
    return _read_rows(PAGE.read_text().split("## What a command prints")[1].split("\n## ")[0])


def read_printed(command: str, text: str) -> Any:
    """What a command printed with --json: one line of ASCII, and as the page says."""
    (line,) = text.splitlines()
    assert line.isascii()
    document = json.loads(line)
    assert find_faults(document, read_commands()[command]) == []
    return document


def read_shapes(text: str | None = None) -> dict[str, dict[str, str]]:
    """Shape -> field -> type, of the page or of another text."""
    parts = re.split(r"^### ", text or PAGE.read_text(), flags=re.MULTILINE)[1:]
    return _make_dict((part.split("\n")[0], _read_rows(part)) for part in parts)


def _read_rows(table: str) -> dict[str, str]:
    return _make_dict(ROW.findall(table))


def _make_dict(pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """A name that stands twice would hide what it meant the first time."""
    found: dict[str, Value] = {}
    for name, value in pairs:
        assert name not in found, f"{name} stands twice on the page"
        found[name] = value
    return found


def find_faults(value: Any, kind: str, where: str = "it") -> list[str]:
    """What of a document is not as the page says; each with the place."""
    kind, *others = [kind] if kind in SIMPLE else kind.split(" or ")
    if others:
        every = [find_faults(value, one, where) for one in (kind, *others)]
        return min(every, key=len)
    if kind.startswith("list of "):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        inner = kind.removeprefix("list of ")
        return [
            fault
            for place, each in enumerate(value)
            for fault in find_faults(each, inner, f"{where}[{place}]")
        ]
    if kind in SIMPLE:
        return [] if SIMPLE[kind](value) else [f"{where} is {value!r}, and no {kind}"]
    return _find_field_faults(value, read_shapes()[kind], where)


def _find_field_faults(value: Any, fields: dict[str, str], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where} is no object"]
    known = {name.removesuffix("?"): kind for name, kind in fields.items()}
    faults = [
        f"{where} lacks {name}"
        for name in fields
        if name not in value and not name.endswith("?") and name != "..."
    ]
    for name, each in value.items():
        if name in known:
            faults += find_faults(each, known[name], f"{where}.{name}")
        elif "..." not in fields:
            faults.append(f"{where} has {name}, of which the page says nothing")
    return faults
