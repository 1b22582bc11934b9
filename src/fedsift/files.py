"""Files that survive a kill: atomic writes, appended rows, and one lock for a folder or a file."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fedsift.types import UserError

LOCK = ".lock"


def write_atomic(
    path: Path, content: bytes | Callable[[IO[bytes]], object], mode: int = 0o644
) -> None:
    """Replace a file as a whole: readers see the old content or the new, never a part.

    `content` is the bytes, or a function that writes them to an open file.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, content: Any) -> None:
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one line of JSON; it is on disk when this returns. A link is not followed."""
    with os.fdopen(_open_regular(path, os.O_WRONLY | os.O_APPEND), "a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a plain file of at most so many bytes; ValueError for any other.

    A link may be read. A pipe or a device is not waited for.
    """
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a plain file")
        if found.st_size > most:
            raise ValueError(f"it has {found.st_size:,} bytes; {most:,} are the most")
        return file.read(most)


def check_no_link(path: Path, within: Path) -> None:
    """Refuse a path that leads through a link below the folder `within`, which the user named.

    What lies in that folder may come from a stranger, and a link in it lead anywhere.
    """
    for place in (path, *path.parents):
        if place == within:
            return
        if place.is_symlink():
            raise UserError(f"{place} is a link, and none is followed in {within}; remove it")


def is_temporary(path: Path) -> bool:
    """Whether a file is what a killed `write_atomic` left behind."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


class Lock:
    """One process at a time. The system releases the lock when the process ends in any way."""

    _handle: int | None = None

    def __init__(self, path: Path, message: str) -> None:
        """`message` is what the user reads when another process holds the lock."""
        self._handle = _open_regular(path, os.O_RDWR)
        try:
            import fcntl

            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not on Windows: there two processes in one folder are not noticed
            pass
        except OSError:
            self.release()
            raise UserError(message) from None

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def lock_folder(folder: Path) -> Lock:
    """Lock a folder, and remove what a killed process left half written in it."""
    lock = Lock(folder / LOCK, f"another process is running in {folder}")
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()
    return lock


def locked_by_someone(path: Path) -> bool:
    """Whether a process holds this lock. Nothing is opened, so nobody is disturbed; where the
    system has no list of locks, nobody is seen.
    """
    try:
        held, found = Path("/proc/locks").read_text(), path.lstat()
    except OSError:
        return False
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any(place in words and "FLOCK" in words for words in map(str.split, held.splitlines()))


def _open_regular(path: Path, flags: int) -> int:
    """Open or make a file to write to. It is never a link that is followed, never emptied, and
    never waited for: the folder may come from a stranger.
    """
    flags |= os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags, 0o644)
    except OSError as error:
        if path.is_symlink():
            raise UserError(f"{path} is a link, not a file; remove it") from None
        raise error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path} is not a plain file; remove it")
    return handle


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power cut too; not every system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
