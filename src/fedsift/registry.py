"""Shelves are plain dicts of names; this finds a part by its text, e.g. "era", "era(0.05)",
"resnet8(norm=group)".
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedsift.types import UserError

_SPEC = re.compile(r"\s*([\w.:+-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def parse_spec(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """ "name(1, key=word)" -> ("name", [1], {"key": "word"}). Bare words are strings."""
    match = _SPEC.fullmatch(text)
    if not match:
        raise UserError(f"cannot read {text!r}; write name or name(value, key=value)")
    name, inside = match.groups()
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for piece in split_arguments(inside or ""):
        key, equals, value = piece.partition("=")
        if equals and key.strip().isidentifier():
            named[key.strip()] = _value(value)
        else:
            positional.append(_value(piece))
    return name, positional, named


def build(registry: Mapping[str, Any], kind: str, text: str, ready: type | None = None) -> Any:
    """The part that `text` names. A class on a shelf is made with the values in brackets; a
    function is the part.

    Where `ready` is given, what is an instance of it is the part and everything else is a maker.
    """
    name, positional, named = parse_spec(text)
    part = lookup(registry, kind, name)
    if isinstance(part, ready) if ready else not isinstance(part, type):
        if positional or named:
            raise UserError(f"{kind} {name!r} takes no values, but {text!r} gives some")
        return part
    try:
        return part(*positional, **named)
    except TypeError as error:
        raise UserError(f"{kind} {text!r}: {error}") from None


def lookup(registry: Mapping[str, Any], kind: str, name: str, where: str | None = None) -> Any:
    if name in registry:
        return registry[name]
    raise UserError(unknown_name(kind, name, registry, where))


def unknown_name(kind: str, name: str, known: Iterable[str], where: str | None = None) -> str:
    """ "unknown sampler 'entropi'; did you mean 'low-entropy'? (fedsift ls samplers)" """
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.4)
    near = near or [other for other in names if name.lower() in other or other in name.lower()][:1]
    guess = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
    return f"unknown {kind} {name!r}{guess} ({where or f'fedsift ls {kind}s'})"


def split_arguments(inside: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    pieces, depth, piece = [], 0, ""
    for letter in inside:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += letter
    return [p for p in [*pieces, piece] if p.strip()]


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()
