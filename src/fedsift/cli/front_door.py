"""Verbs of `fedsift flower` for who may come in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, say


def key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="For the private key.", show_default=False)
    ],
) -> None:
    """Make this node's key, here. The private key stays; send FILE.pub to the operator."""
    with error_handler():
        from fedsift.flower import keys

        made = keys.create_key(file)
        say(made.text)
        say(f"wrote {file} (keep it here) and {keys.public_path(file)} (send it to the operator)")
        say(f"fingerprint, to compare by telephone: {made.fingerprint}")
