"""The report: one HTML file with its style, its script and its data inside. It asks no host."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from fedsift.types import UserError

HOME = Path(__file__).parent / "page"
SCRIPTS = ("basics.js", "charts.js", "marks.js", "figures.js", "conversation.js", "main.js")
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def make_page(data: dict[str, Any], live: bool = False) -> str:
    """The page as HTML. A live one asks its own server for news, and nobody else."""
    style, script = read_style(), read_script()
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'" if live else "")
    )
    parts = {
        "policy": policy,
        "style": style,
        "script": script,
        "live": "true" if live else "false",
        "data": to_safe_json(data),
    }
    page = (HOME / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():  # the data last: nothing is looked for in them
        page = page.replace(f"[[{name}]]", text, 1)
    return page


def to_safe_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter, escape in UNSAFE.items():
        text = text.replace(letter, escape)
    return text


@cache
def read_style() -> str:
    return (HOME / "page.css").read_text(encoding="utf-8")


@cache
def read_script() -> str:
    """Our own, in the order in which one file needs the other."""
    return "\n".join((HOME / name).read_text(encoding="utf-8") for name in SCRIPTS)


def _digest(text: str) -> str:
    """As a content security policy names what may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def check_page_name(file: Path) -> None:
    if file.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report is a page: write -o {file.stem or 'report'}.html, not {file}")
