"""What `--json` prints: one document that every reader of JSON takes, whatever a file held."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def print_json(document: Any) -> None:
    """One line on stdout, in ASCII: other letters are escaped, so no terminal obeys them."""
    typer.echo(json.dumps(make_plain(document), allow_nan=False))


def make_plain(value: Any) -> Any:
    """The same of what JSON has: a number that is none, as NaN, becomes null; a path a text; half
    a letter, which strict readers refuse, a question mark.
    """
    if isinstance(value, Mapping):
        return {str(make_plain(str(key))): make_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str | Path):
        return str(value).encode("utf-8", "replace").decode()
    return value
