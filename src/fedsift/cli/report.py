"""`fedsift report`: runs as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, format_bytes, note, say
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Runs


def report(
    folders: Runs,
    file: Annotated[Path, typer.Option("-o", "--output", help="FILE.html")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page on runs: accuracy, bytes, and what clients said to the server.

    It is one file that opens in any browser, offline, and loads nothing else.
    """
    with error_handler():
        from fedsift.files import write_atomic
        from fedsift.report import pages
        from fedsift.report.folders import load_runs
        from fedsift.report.page_data import describe_page

        pages.check_page_name(file)
        page = pages.make_page(describe_page(load_runs(folders, note))).encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, page)
        if as_json:
            print_json({"wrote": [file], "bytes": len(page)})
            return
        say(f"wrote {file} ({format_bytes(len(page))})")
