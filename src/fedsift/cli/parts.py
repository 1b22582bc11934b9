"""Every part that a user can name: what it is, and what may stand in brackets behind its name."""

from __future__ import annotations

import inspect
import re
from typing import Any

FIXED = {"models": {"shape", "classes"}}  # given by fedsift, not by the user
MAKERS = {"models", "codecs", "algorithms", "engines"}  # kinds whose functions make the part
PLAIN = (bool, int, float, str)


def describe_part(kind: str, name: str, about: str, part: Any) -> dict[str, Any]:
    """For `fedsift ls --json`; `part` is None where there is only a form, as for a plug-in."""
    return {"kind": kind, "name": name, "about": about, "options": list_options(kind, part)}


def list_options(kind: str, part: Any) -> list[dict[str, Any]]:
    """Of a class, or of a function that makes the part. A function that is the part has none."""
    if not (inspect.isclass(part) or (kind in MAKERS and callable(part))):
        return []
    found = inspect.signature(part).parameters
    return [
        _describe_option(part, option)
        for name, option in found.items()
        if name not in FIXED.get(kind, ())
    ]


def _describe_option(part: Any, option: inspect.Parameter) -> dict[str, Any]:
    required = option.default is inspect.Parameter.empty
    default = None if required else option.default
    return {
        "name": option.name,
        "type": re.sub(r"\s+", " ", str(option.annotation)),
        "required": required,
        "default": default if default is None or isinstance(default, PLAIN) else repr(default),
        "about": _find_meaning(part, option.name),
    }


def _find_meaning(part: Any, option: str) -> str | None:
    """What the docstring says of it, "name: ...", or else its field, or the comment behind that."""
    from fedsift import registry

    part = getattr(part, "func", part)  # of a partial
    if said := registry.read_arguments(part).get(option):
        return said
    field = getattr(part, "__dataclass_fields__", {}).get(option)
    if field and "about" in field.metadata:
        return str(field.metadata["about"])
    comment = re.search(rf"^\s+{option}: .*?  # (.+)$", _read_source(part), re.MULTILINE)
    return comment[1] if comment else None


def _read_source(part: Any) -> str:
    try:
        return inspect.getsource(part)
    except OSError:  # there may be no source beside compiled files
        return ""
