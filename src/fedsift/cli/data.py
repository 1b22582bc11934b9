"""`fedsift data`: what published data sets there are, and getting them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, format_bytes, new_table, print_table, say, warn
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json, Quiet

app = typer.Typer(no_args_is_help=True, help="Published data sets: list them, get them.")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Where data sets are kept (default: $FEDSIFT_DATA, else a cache folder)."
    ),
]


@app.command("ls")
def list_datasets(
    folder: Folder = None,
    as_json: Json = False,
) -> None:
    """The data sets that can be fetched, and which are here."""
    with error_handler():
        from fedsift.data import cache
        from fedsift.data.catalogue import CATALOGUE

        rows = [
            {
                "name": name,
                "about": known.about,
                "download_bytes": known.download_bytes,
                "here": cache.is_here(cache.path(name, folder)),
                "path": str(cache.path(name, folder)),
            }
            for name, known in CATALOGUE.items()
        ]
        if as_json:
            print_json(rows)
            return
        table = new_table(f"in {cache.folder(folder)}", "name", "download", "here")
        table.columns[0].no_wrap = True
        table.add_column("what it is")
        for row in rows:
            here = "yes" if row["here"] else "no"
            table.add_row(
                str(row["name"]),
                format_bytes(float(str(row["download_bytes"]))),
                here,
                str(row["about"]),
            )
        print_table(table)


@app.command()
def get(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="As in: fedsift data ls", show_default=False),
    ],
    folder: Folder = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A folder or .tar.gz you have, in the official format."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fetch data sets once, check them, and keep them; what is here already is left alone."""
    with error_handler():
        from fedsift.data import cache, download

        rows = []
        for name in names:
            with _display(quiet) as progress:
                got = download.get(name, folder, source, progress)
            size = got.path.stat().st_size
            about = {"bytes": size, "source": got.source or None}
            rows.append({"name": name, "path": got.path} | about)
            if as_json:
                continue
            if not got.source:
                say(f"{name} is here already: {got.path}")
                continue
            say(f"{name}: {format_bytes(size)} in {got.path}, from {got.source}")
            if cache.folder(folder) != cache.folder():
                warn(f"to use it: export FEDSIFT_DATA={cache.folder(folder).absolute()}")
        if as_json:
            print_json(rows)


@contextlib.contextmanager
def _display(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for each file that is fetched; where there is no terminal, a line."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield _in_lines()
    else:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bars:
            tasks: dict[str, int] = {}

            def show(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(what, total=total or None)
                bars.update(tasks[what], completed=done)  # type: ignore[arg-type]

            yield show


def _in_lines() -> Callable[[str, int, int], None]:
    begun = set()

    def tell(what: str, done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            warn(f"fetching {what}" + (f", {format_bytes(total)}" if total else ""))

    return tell
