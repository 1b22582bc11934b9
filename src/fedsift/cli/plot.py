"""`fedsift plot`: a picture of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, note, say
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Runs


def plot(
    folders: Runs,
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.png, .pdf or .svg")],
    as_json: Json = False,
) -> None:
    """Draw accuracy against rounds and uplink bytes, and the labels of the clients."""
    with error_handler():
        from fedsift.report import plots
        from fedsift.report.folders import load_runs

        plots.plot(load_runs(folders, note), file)
        if as_json:
            print_json({"wrote": [file]})
        else:
            say(f"wrote {file}")
