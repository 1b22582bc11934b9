"""Files of a data set, found by name in a folder or taken from a tar archive, with a size limit."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
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
    """The files called `names` out of a .tar.gz, wherever they lie in it, in a folder that is gone
    afterwards.

    What an archive says about where to write is ignored, so it cannot write anywhere else.
    """
    with tempfile.TemporaryDirectory(prefix="fedsift-") as folder:
        try:
            with (
                _AtMost(archive, total + _SLACK) as packed,
                tarfile.open(fileobj=packed, mode="r|") as tar,
            ):
                for member in tar:
                    name = PurePosixPath(member.name).name
                    if name in names and member.isreg():
                        _copy(tar, member, Path(folder) / name, limit)
        except FileNotFoundError:
            raise UserError(f"no such file: {archive}") from None
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"cannot read {archive} as a .tar.gz archive: {error}") from None
        yield Folder(Path(folder), limit)


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, limit: int) -> None:
    if member.size > limit:
        raise UserError(
            f"{member.name!r} in the archive is larger than the {limit:,} bytes such a file "
            "can have"
        )
    source = tar.extractfile(member)
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
