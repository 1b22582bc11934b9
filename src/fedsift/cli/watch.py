"""`fedsift watch`: the report, live."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedsift.cli.console import error_handler, say, user_error

HERE = "127.0.0.1"
LAST_LOOK = 2.0  # seconds


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...", help="Run folders, or folders of runs.", show_default="runs"
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any.")] = 8033,
    host: Annotated[
        str, typer.Option("--host", help="Another address is served with a token.")
    ] = HERE,
    soon: Annotated[bool, typer.Option("--soon", hidden=True)] = False,
) -> None:
    """Serve the report of runs on this machine, live: rounds appear as they end.

    It reads, and writes nothing. Stop it with Ctrl-C; runs go on.
    """
    with error_handler():
        import secrets

        from fedsift.report.live import LOOPBACK, Board, Server

        chosen = folders or [Path("runs")]
        if not soon and (absent := [folder for folder in chosen if not folder.is_dir()]):
            raise user_error(f"{absent[0]} is not a folder; name run folders, or one of runs")
        token = None if host in LOOPBACK else secrets.token_urlsafe(24)
        server = Server(Board(chosen), host, port, token)
        say(f"watching {', '.join(map(str, chosen))} at {server.address} (Ctrl-C ends it)")
        sys.stdout.flush()
        try:
            server.serve()
        except KeyboardInterrupt:
            say("stopped watching; runs go on")


@contextlib.contextmanager
def watching(folder: Path, wanted: bool) -> Iterator[None]:
    """`fedsift watch` in a process of its own, so that readers cost the run nothing.

    It ends a moment after the run, when pages have seen the end.
    """
    if not wanted:
        yield
        return
    words = ["-m", "fedsift", "watch", str(folder), "--port", "0", "--soon"]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=2) as process:
        try:
            yield
            time.sleep(LAST_LOOK)
        finally:
            process.terminate()
