"""fedsift's own log lines on both sides: with time stamps, without colours, JSON on request."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from fedsift import registry
from fedsift.types import UserError

LOG = logging.getLogger("fedsift")
SERVER_LOG = "server.log"  # in the run folder
LARGEST = 5_000_000  # bytes of a log; then it is renamed to server.log.1, and a new one begins


def say(text: str, level: int = logging.INFO, **fields: Any) -> None:
    """One line; `fields` are the same facts for programs (`log = "json"`)."""
    LOG.log(level, text, extra={"fields": fields})


def warn(text: str, **fields: Any) -> None:
    say(text, logging.WARNING, **fields)


def complain(text: str, **fields: Any) -> None:
    say(text, logging.ERROR, **fields)


def start_logging(form: str) -> None:
    """Lines go to stderr in this form. Called with every message: the last call counts."""
    for handler in [h for h in LOG.handlers if isinstance(h, Console)]:
        LOG.removeHandler(handler)
    console = Console()
    console.setFormatter(find_form(form))
    LOG.addHandler(console)
    LOG.setLevel(logging.INFO)


@contextlib.contextmanager
def logging_to(folder: Path, form: str) -> Iterator[None]:
    """Lines also go to the log of a run folder; a resumed run adds to it."""
    handler = FolderLog(folder / SERVER_LOG, maxBytes=LARGEST, backupCount=1)
    handler.setFormatter(find_form(form))
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        with contextlib.suppress(OSError):  # what a full disk has not taken is lost
            handler.close()


def find_form(name: str) -> logging.Formatter:
    forms: dict[str, type[logging.Formatter]] = {"text": TextForm, "json": JsonForm}
    return registry.lookup(forms, "form of log lines", name, "text or json")()


class Console(logging.Handler):
    """stderr as it is now: Flower and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed stream must not end a run
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


class FolderLog(RotatingFileHandler):
    """A bounded file. It follows no link, and a full disk does not end a run."""

    def _open(self) -> TextIO:  # type: ignore[override]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        if Path(self.baseFilename).is_symlink():
            raise UserError(f"{self.baseFilename} is a link; remove it")
        return os.fdopen(os.open(self.baseFilename, flags, 0o644), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the line is also on the console."""


class TextForm(logging.Formatter):
    """A line for each message, whatever is in it; the lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        told = escape(record.getMessage())
        lines = [f"{_time(record)} {record.levelname} fedsift: {told}"]
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            lines += [f"  {escape(line)}" for line in trace]
        return "\n".join(lines)


class JsonForm(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower()}
        line |= {"message": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def escape(text: str) -> str:
    """The same with \\n for a line feed, and so on: a terminal obeys nothing in it."""
    signs = (s if s.isprintable() else s.encode("unicode_escape").decode() for s in text)
    return "".join(signs)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
