"""The program as a user calls it, in this process or in one of its own."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedsift.cli import app
from tests.helpers.runs import KINDS, PROGRAM, cli

fedsift = cli

FAS = ["digits-fas", *KINDS["digits-fas"]]
SUMMARY = [
    "run",
    "rounds",
    "accuracy",
    "accuracy_last",
    "measured_on",
    "uplink_bytes",
    "downlink_bytes",
    "seconds",
]
CHOSEN = (
    r"batched engine on cpu, float32, \d+ thread\(s\) "
    r"\(auto: stacks equal networks where that pays\)"
)
MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-", "svg": b"<?xml"}


def everything() -> dict[str, bytes]:
    """All files below the working folder."""
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=100, **options
    )


def list_commands() -> Iterator[tuple[str, Any]]:
    """The words that name a command, and the command."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {verb}", inner) for verb, inner in command.commands.items())
        else:
            yield name, command


def done(*words: str) -> Any:
    result = fedsift(*words)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def complaint(*words: str, code: int = 2) -> str:
    """The one line of a mistake: no traceback, nothing on stdout."""
    result = fedsift(*words)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr), result.stderr
    return result.stderr


def rows(text: str) -> list[list[str]]:
    """The cells of the printed tables, row by row: what stands between a rule and an empty line."""
    found, inside = [], False
    for line in map(str.strip, text.splitlines()):
        inside = bool(line) and (inside or set(line) == {"─"})
        if inside and set(line) != {"─"}:
            found.append(re.split(r"\s{2,}", line))
    return found


def signalled(command: list[str], number: int, moment: Any) -> subprocess.CompletedProcess[str]:
    """A program that gets a signal once `moment()` has come."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 60
        while not moment() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def interrupted(words: list[str], moment: Any) -> subprocess.CompletedProcess[str]:
    """Ctrl-C once `moment()` has come."""
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fedsift.cli import main; main()"
    )
    return signalled([sys.executable, "-c", start, *words], signal.SIGINT, moment)


def terminated(words: list[str], moment: Any) -> subprocess.CompletedProcess[str]:
    return signalled([*PROGRAM, *words], signal.SIGTERM, moment)


def on_terminal(words: list[str], columns: int) -> str:
    """All that the program writes to a terminal of so many columns, without the control codes."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = os.environ | {"TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen([*PROGRAM, *words], stdout=its, stderr=its, env=env) as process:
        os.close(its)
        written = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                written += part
    os.close(ours)
    assert process.returncode == 0, written
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


def by_shell(command: str) -> subprocess.CompletedProcess[str]:
    """A command as it was printed, pasted into a shell."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
