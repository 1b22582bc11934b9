"""Files of a data set, found by name in a folder or taken from an archive, with a size limit."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from fedsift.types import UserError

_SLACK = 1 << 20  # bytes of headers and padding an archive may have on top of its files


class Missing(UserError):
    """A folder has no data set in the format asked for, or not all of it."""


@dataclass(frozen=True)
class Folder:
    """A user's folder; files often lie in sub-folders `inner`. No file may exceed `limit` bytes."""

    path: Path
    limit: int
    inner: tuple[str, ...] = ()

    def find(self, name: str) -> Path | None:
        places = (self.path / sub / name for sub in ("", *self.inner))
        return next((place for place in places if place.is_file()), None)

    def list(self, pattern: str) -> list[str]:
        """The names of all files that fit a pattern, in order; Missing where there is none."""
        places = (self.path / sub for sub in ("", *self.inner))
        found = {f.name for place in places for f in place.glob(pattern) if f.is_file()}
        if not found:
            raise Missing(f"no file {pattern} in {self.path}")
        return sorted(found)

    def locate(self, name: str) -> Path:
        found = self.find(name)
        if found is None:
            raise Missing(f"no file {name} in {self.path}")
        return found

    def read(self, name: str) -> bytes:
        """The file, or the content of NAME.gz where only that is there."""
        path = self.find(name)
        if path is not None:
            with open(path, "rb") as file:
                return self._bounded(file, name)
        path = self.find(f"{name}.gz")
        if path is None:
            raise Missing(f"no file {name} (or {name}.gz) in {self.path}")
        with gzip.open(path) as packed:
            try:
                return self._bounded(packed, f"{name}.gz")
            except (OSError, EOFError, zlib.error) as error:
                raise UserError(f"{name}.gz is damaged: {error}") from None

    def _bounded(self, file: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
        content = file.read(self.limit + 1)
        if len(content) > self.limit:
            raise UserError(f"{name} is larger than the {self.limit:,} bytes such a file can have")
        return content


@contextlib.contextmanager
def unpack(archive: Path, names: Collection[str], limit: int, total: int) -> Iterator[Folder]:
    """The files called `names` (or like these patterns) out of a .tar.gz or a wheel, wherever they
    lie in it, in a folder that is gone afterwards.

    What an archive says about where to write is ignored, so it cannot write anywhere else.
    """
    with tempfile.TemporaryDirectory(prefix="fedsift-") as folder:
        kind, take = ("wheel", _take_zip) if archive.suffix == ".whl" else (".tar.gz", _take_tar)
        try:
            take(archive, names, Path(folder), limit, total)
        except FileNotFoundError:
            raise UserError(f"no such file: {archive}") from None
        except _DAMAGES as error:
            raise UserError(f"cannot read {archive} as a {kind} archive: {error}") from None
        yield Folder(Path(folder), limit)


_DAMAGES = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error)


def _is_wanted(path: str, names: Collection[str]) -> bool:
    name = PurePosixPath(path).name
    return name in names or any(fnmatchcase(name, pattern) for pattern in names)


def _take_tar(archive: Path, names: Collection[str], folder: Path, limit: int, total: int) -> None:
    with (
        _AtMost(archive, total + _SLACK) as packed,
        tarfile.open(fileobj=packed, mode="r|") as tar,
    ):
        for member in tar:
            if _is_wanted(member.name, names) and member.isreg():
                _check_size(member.name, member.size, limit)
                _copy(tar.extractfile(member), folder / PurePosixPath(member.name).name)


def _take_zip(archive: Path, names: Collection[str], folder: Path, limit: int, total: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            if _is_wanted(entry.filename, names) and not entry.is_dir():
                _check_size(entry.filename, entry.file_size, min(limit, total))
                _copy(packed.open(entry), folder / PurePosixPath(entry.filename).name)


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise UserError(
            f"{name!r} in the archive is larger than the {limit:,} bytes such a file can have"
        )


def _copy(source: IO[bytes] | None, target: Path) -> None:
    if source:
        with source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)


class _AtMost(gzip.GzipFile):
    """A file that refuses to exceed the expected length, so a small archive cannot unpack large."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path)
        self._left = limit

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self._left -= len(content)
        if self._left < 0:
            raise UserError("the archive unpacks to more than such an archive can hold")
        return content
