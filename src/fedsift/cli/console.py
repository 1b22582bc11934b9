"""What the command line says: lines, tables of runs, and mistakes without a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fedsift.report import Method
    from fedsift.runs import History


def say(text: str) -> None:
    typer.echo(text)


def warn(text: str) -> None:
    typer.echo(text, err=True)


def note(text: str) -> None:
    warn(f"note: {text}")


def print_table(table: Table) -> None:
    from rich.console import Console

    Console(
        width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120, markup=False
    ).print(table)


def new_table(title: str, first: str, *others: str) -> Table:
    """A title, a column that may wrap, and columns of figures."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column(first, overflow="fold")
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def comparison(histories: list[History], target: float | None = None) -> Table:
    """With a target, also the bytes uploaded until its accuracy was first reached."""
    from fedsift import evaluation, report

    lengths = {len(run.metrics) for run in histories}
    over = evaluation.settled_over(max(lengths)) + (
        ", or all a run has" if len(lengths) > 1 else ""
    )
    title = f"test accuracy ({over}) and bytes on the wire"
    columns = ["method", "seeds", "accuracy", "an upload", "all up", "all down", "broadcast"]
    table = new_table(title, *columns, *([] if target is None else [f"up to {target:g}"]))
    for method in report.methods(histories):
        cost = [] if target is None else [method.uplink_to(target)]
        table.add_row(
            *_cells(method),
            *("not by all" if bytes is None else format_bytes(bytes) for bytes in cost),
        )
    return table


def _cells(method: Method) -> list[str]:
    row = method.row()
    spread = "" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.3f}"
    sizes = ("uplink_bytes_per_upload", "uplink_bytes", "downlink_bytes", "broadcast_bytes")
    seeds = str(len(row["seeds"]))
    return [
        plain_text(row["method"]),
        seeds,
        f"{row['accuracy']:.3f}{spread}",
        *(format_bytes(row[s]) for s in sizes),
    ]


def plain_text(text: str) -> Any:
    """A name as it is, square brackets included."""
    from rich.text import Text

    return Text(text)


def shorten_ids(ids: Collection[int]) -> str:
    """As many of them as have room in a table, and how many there are where that is not all."""
    return textwrap.shorten(" ".join(map(str, ids)), 60, placeholder=f" ... {len(ids):,} in all")


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def user_error(text: str) -> Exception:
    from fedsift.types import UserError

    return UserError(text)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: stop as at Ctrl-C."""


def describe_stop(by: KeyboardInterrupt) -> tuple[str, int]:
    """The word for it, and the exit code a shell expects."""
    return ("terminated", 143) if isinstance(by, Terminated) else ("interrupted", 130)


@contextlib.contextmanager
def _catch_sigterm() -> Iterator[None]:
    """SIGTERM is raised like Ctrl-C, unless somebody has set what it does."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def error_handler() -> Iterator[None]:
    """No traceback for a user's error, a full disk, Ctrl-C or SIGTERM."""
    try:
        with _catch_sigterm():
            yield
    except KeyboardInterrupt as by:
        word, code = describe_stop(by)
        warn(word)
        raise typer.Exit(code) from None
    except BrokenPipeError:  # as in `fedsift ls | head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # nothing more to flush at exit
        raise typer.Exit(141) from None
    except OSError as error:
        warn(f"error: {describe_os_error(error)}")
        raise typer.Exit(1) from None
    except ValueError as error:
        from fedsift.codecs import WireError
        from fedsift.types import UserError

        if not isinstance(error, UserError | WireError):
            raise
        warn(f"error: {error}")
        raise typer.Exit(2) from None


def describe_os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return (
        f"cannot use{where}: {error.strerror or error}" if where else f"{error.strerror or error}"
    )
