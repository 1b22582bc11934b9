"""What the command line prints: lines, tables of runs, and errors without a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


TRACEBACK = "FEDSIFT_TRACEBACK"  # set it to see where own code failed, frame by frame
_OBEYED = re.compile(r"(?!\x1b\[[\d;]*m)[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
PIPED = 120  # columns of a table that does not go to a terminal


def replace_closed_streams() -> None:
    """What goes to a closed stdout or stderr, as by `>&-`, is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def say(text: str, end: str = "\n") -> None:
    """A line on stdout, as `make_printable` leaves it; where its encoding lacks a character,
    something else in its place.
    """
    typer.echo(_make_encodable(make_printable(text)), nl=False, color=True)
    typer.echo(end, nl=False)


def warn(text: str) -> None:
    """A line on stderr, as `make_printable` leaves it; where nobody can read it, as on a closed
    terminal, it is dropped.
    """
    with contextlib.suppress(OSError):
        typer.echo(make_printable(text), err=True)


def note(text: str) -> None:
    warn(f"note: {text}")


def make_printable(text: str) -> str:
    """The same with \\x07 for a letter that a terminal obeys: a text may be of a stranger's file.
    Lines stay lines, and colours and weights of letters stay what they are.
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _make_encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("±", "+-").encode(encoding, "replace").decode(encoding)
    return text


def get_width() -> int | None:
    """The columns of the terminal, or None where there is none; COLUMNS goes before both."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_entry(name: str, about: str, indent: str = "", column: int = 24) -> str:
    """A name and what it is, the latter from this column on. Wrapped to the terminal, if there is
    one; a line per name is easier to search.
    """
    text = f"{indent}{name:<{column}} {about}"
    return wrap_lines(text, f"{indent}{'':<{column if (get_width() or 0) >= 60 else 4}} ")


def wrap_lines(text: str, hanging: str = "") -> str:
    """Each line wrapped to the terminal, if there is one; what follows is indented."""
    if (width := get_width()) is None:
        return text
    return "\n".join(
        textwrap.fill(line, max(width, 40), subsequent_indent=hanging, break_on_hyphens=False)
        for line in text.split("\n")
    )


def print_table(table: Table, dropped: Sequence[str] = ()) -> None:
    """Where the table is too wide, the columns with these names are left out, in turn."""
    console = make_console()
    fit_table(table, console, dropped)
    with console.capture() as captured:
        console.print(table)
    say(captured.get(), end="")


def fit_table(table: Table, console: Console, dropped: Sequence[str]) -> bool:
    """Leave out columns until the table fits, if it can be made to."""
    for name in (None, *dropped):
        table.columns = [column for column in table.columns if column.header != name]
        for place, column in enumerate(table.columns):
            column._index = place  # rich pads columns by their place
        wide = console.options.update(width=10_000)
        if console.measure(table, options=wide).maximum <= console.width:
            return True
    return False


def make_console() -> Console:
    from rich.console import Console

    return Console(width=get_width() or PIPED, markup=False, highlight=False)


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


def print_remark(text: str) -> None:
    """A remark below a table."""
    from rich.text import Text

    console = make_console()
    with console.capture() as captured:
        console.print(Text(text, "dim"))
    say(captured.get(), end="")


def plain_text(text: str) -> Any:
    """A name as it is, square brackets included."""
    from rich.text import Text

    return Text(text)


def shorten_ids(ids: Collection[int], room: int = 60) -> str:
    """As many of them as have room in a table, and how many there are where that is not all."""
    return textwrap.shorten(" ".join(map(str, ids)), room, placeholder=f" ... {len(ids):,} in all")


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


class HungUp(KeyboardInterrupt):
    """SIGHUP came, the terminal was closed: stop as at Ctrl-C."""


STOPPING = {"SIGTERM": Terminated, "SIGHUP": HungUp}  # the latter is not there on Windows


def describe_stop(by: KeyboardInterrupt) -> tuple[str, int]:
    """The word for it, and the exit code a shell expects."""
    if isinstance(by, Terminated):
        return "terminated", 143
    return ("terminal closed", 129) if isinstance(by, HungUp) else ("interrupted", 130)


@contextlib.contextmanager
def _catch_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP are raised like Ctrl-C, unless somebody has set what they do."""
    names = [name for name in STOPPING if hasattr(signal, name)]
    signs = [(getattr(signal, name), STOPPING[name]) for name in names]
    ours = threading.current_thread() is threading.main_thread()
    taken = [sign for sign, _ in signs if ours and signal.getsignal(sign) is signal.SIG_DFL]

    def stop(number: int, _: object) -> None:
        kind = dict(signs)[signal.Signals(number)]
        if kind is HungUp:  # a closed terminal sends it more than once; the ending must be finished
            signal.signal(number, signal.SIG_IGN)
        raise kind

    for sign in taken:
        signal.signal(sign, stop)
    try:
        yield
    finally:
        for sign in taken:
            signal.signal(sign, signal.SIG_DFL)


@contextlib.contextmanager
def _show_warnings_as_notes() -> Iterator[None]:
    """There is no line of the user's to point at here, so only the text is shown."""
    with warnings.catch_warnings():
        usual: Any = warnings.showwarning

        def show(message: Any, category: Any, *where: Any) -> None:
            if category is UserWarning:
                note(str(message))
            else:
                usual(message, category, *where)

        change: Any = warnings
        change.showwarning = show
        yield


@contextlib.contextmanager
def error_handler() -> Iterator[None]:
    """No traceback for a user's error, a full disk, Ctrl-C, SIGTERM, SIGHUP or an error in a
    user's own code; of the last there is one if FEDSIFT_TRACEBACK is set.
    """
    try:
        with _catch_signals(), _show_warnings_as_notes():
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
    except typer.Exit:
        raise
    except Exception as error:
        from fedsift.codecs import WireError
        from fedsift.types import UserError

        if isinstance(error, UserError | WireError):
            warn(f"error: {error}")
            raise typer.Exit(2) from None
        where = None if os.environ.get(TRACEBACK) else locate_own_code(error)
        if where is None:
            raise
        said = " ".join(str(error).split())
        warn(f"error in {where}: {f'{type(error).__name__}: {said}'.removesuffix(': ')}")
        raise typer.Exit(1) from None


def locate_own_code(error: Exception) -> str | None:
    """ "/home/me/own.py, line 3" where the user's own code failed, also inside a package that it
    called; None for an error of fedsift.
    """
    import site
    import sysconfig

    fedsift = Path(__file__).parent.parent
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    installed += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(fedsift):
            return None
        if file.is_file() and not any(file.is_relative_to(folder) for folder in installed):
            return f"{file}, line {frame.lineno}"
    return None


def describe_os_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return (
        f"cannot use{where}: {error.strerror or error}" if where else f"{error.strerror or error}"
    )
