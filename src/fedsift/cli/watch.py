"""`fedsift watch`: the report, live."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsift.cli.console import error_handler, say, user_error
from fedsift.cli.json_output import print_json
from fedsift.cli.options import Json

if TYPE_CHECKING:
    from fedsift.report.live import Server

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
    browse: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    as_json: Json = False,
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
) -> None:
    """Serve the report of runs on this machine, live: rounds appear as they end.

    It reads, and writes nothing. Stop it with Ctrl-C; runs go on.
    """
    with error_handler():
        import secrets

        from fedsift.report.live import LOOPBACK, Board, Server

        chosen = folders or [Path("runs")]
        if not beside and (absent := [folder for folder in chosen if not folder.is_dir()]):
            raise user_error(f"{absent[0]} is not a folder; name run folders, or one of runs")
        token = None if host in LOOPBACK else secrets.token_urlsafe(24)
        server = Server(Board(chosen), host, port, token)
        if as_json:
            print_json({"address": server.address, "folders": chosen})
        else:
            end = "" if beside else " (Ctrl-C ends it)"
            say(f"watching {', '.join(map(str, chosen))} at {server.address}{end}")
        sys.stdout.flush()
        if browse:
            _start_thread(lambda: webbrowser.open(server.address))
        if beside:
            _start_thread(lambda: _close_with_stdin(server))
        try:
            server.serve()
        except KeyboardInterrupt:
            if not (as_json or beside):
                say("stopped watching; runs go on")


def _close_with_stdin(server: Server) -> None:
    os.read(sys.stdin.fileno(), 1)  # past its buffer, whose lock would be held at our own end
    server.close()


def _start_thread(task: Callable[[], object]) -> None:
    threading.Thread(target=task, daemon=True).start()


@contextlib.contextmanager
def watching(folder: Path, wanted: bool, browse: bool) -> Iterator[None]:
    """`fedsift watch` in a process of its own, so that readers cost the run nothing.

    It ends a moment after the run, when pages have seen the end. If the run is killed, it ends
    too: its stdin is closed then. It is not told of a terminal, so that no browser opens in it.
    """
    if not wanted:
        yield
        return
    words = ["-m", "fedsift", "watch", str(folder), "--port", "0", "--beside"]
    words += ["--open"] * browse
    env = {name: value for name, value in os.environ.items() if name != "TERM"}
    with subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=2, env=env
    ) as process:
        try:
            yield
            time.sleep(LAST_LOOK)
        finally:
            process.terminate()
