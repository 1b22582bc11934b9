"""The warnings and errors of a Flower server, shown as soon as they are in its log."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

PAUSE = 0.5  # seconds between two looks
MOST = 1_000_000  # bytes of one look
LEVELS = ("WARNING", "ERROR")

_LINE = re.compile(r"\S+ ([A-Z]+) fedsift: (.*)")


@contextlib.contextmanager
def follow_log(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell of lines that come while this lasts. Those that are there already are not told."""
    log, over = LogReader(path), threading.Event()

    def watch() -> None:
        while not over.wait(PAUSE):
            _tell_serious(log, tell)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _tell_serious(log, tell)


class LogReader:
    """Whole lines of a file that another process adds to, and begins anew when it is full."""

    def __init__(self, path: Path) -> None:
        self.path, self.torn = path, b""
        self.at = path.stat().st_size if path.is_file() else 0

    def read(self) -> list[str]:
        """The lines since the last look."""
        try:
            new = self._read_bytes() if self.path.is_file() else b""
        except OSError:  # it may be renamed at this moment
            return []
        *lines, torn = (self.torn + new).split(b"\n")
        self.torn = torn[:MOST]
        return [line.decode(errors="replace") for line in lines]

    def _read_bytes(self) -> bytes:
        if self.path.stat().st_size < self.at:
            self.at, self.torn = 0, b""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            new = file.read(MOST)
        self.at += len(new)
        return new


def _tell_serious(log: LogReader, tell: Callable[[str], None]) -> None:
    from fedsift.codecs.wire import one_line

    for line in log.read():
        if told := find_serious(line):
            tell(one_line(f"server.log: {told}"))


def find_serious(line: str) -> str:
    """Level and text of a warning or error, in either form of log lines; else nothing."""
    level, text = _split_json(line) if line.startswith("{") else _split_text(line)
    return f"{level} {text}" if level in LEVELS else ""


def _split_text(line: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line)
    return (found[1], found[2]) if found else ("", "")


def _split_json(line: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "", ""
    return str(row.get("level", "")).upper(), str(row.get("message", ""))
