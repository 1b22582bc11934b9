"""Processes that carry a mark in their environment: found, and ended. Standard library only: it is
also a program, the guard that ends what a killed parent has left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# in the environment of everything a deployment starts, so that it can be recognised
MARK = "FEDSIFT_STARTED_BY"


class Process(NamedTuple):
    parent: int
    born: str  # with the pid, no other process: pids are used again


def processes() -> dict[int, Process]:
    """All that run, where the system tells (Linux)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(entry.name)] = Process(int(parent), rest[17])
    return found


def descendants(roots: set[int], now: Mapping[int, Process]) -> set[int]:
    """Children of the roots, and theirs."""
    family, new = set(roots), set(roots)
    while new:
        new = {pid for pid, process in now.items() if process.parent in new} - family
        family |= new
    return family - roots


def find_marked(mark: str) -> Iterator[int]:
    """Running processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def start_guard(mark: str) -> subprocess.Popen[bytes]:
    """A process that ends all with this mark once we are gone; close its stdin to end it too."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what is meant for us, as Ctrl-C, must not end it
    )


def end_marked(mark: str) -> None:
    """First politely, then for good."""
    for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + patience
        while left := list(find_marked(mark)):
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, sign)
            if time.monotonic() > until:
                break
            time.sleep(0.5)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # to its end: the system closes it when the parent ends in any way
    end_marked(sys.argv[1])
