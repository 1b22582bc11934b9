"""`fedsift plot`: a picture of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, note, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Runs


def plot(
    folders: Runs,
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.png, .pdf or .svg")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="curves, bytes, partition, frontier, confusion or picks (default: an overview).",
        ),
    ] = None,
    width: Annotated[
        str | None,
        typer.Option("--width", help="With --kind: column, page or inches (default: page)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw runs: accuracy against rounds and uplink bytes, and the labels of the clients.

    With --kind one picture of that kind, as wide as a column or a page of a paper.
    """
    with error_handler():
        from fedsift.report import pictures, plots
        from fedsift.report.folders import load_runs

        if width is not None and kind is None:
            raise user_error("--width is for pictures of one --kind")
        inches = pictures.read_width(width or "page")
        if kind is None:
            plots.plot(load_runs(folders, note), file)
        else:
            pictures.draw_kind(kind, load_runs(folders, note), file, inches)
        if as_json:
            print_json({"wrote": [file], "kind": kind or "overview"})
        else:
            say(f"wrote {file}")
