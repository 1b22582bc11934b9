"""A data set by its name: a known one, a file, a folder, or a function of your own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fedsift import registry
from fedsift.checks import check_type
from fedsift.data import cache, image_folders
from fedsift.data.arrays import npz
from fedsift.data.catalogue import CATALOGUE
from fedsift.data.dataset import TOKENS, Dataset, make_dataset
from fedsift.data.formats.tables import READERS
from fedsift.data.known import DATASETS
from fedsift.data.sources import find_client_files, load_tables, read_table
from fedsift.data.table import Columns
from fedsift.types import UserError


def load_dataset(
    name: str | os.PathLike[str],
    *,
    target: str | None = None,
    client: str | None = None,
    split: str | None = None,
    text: str | None = None,
    clients: str | None = None,
    classes: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    vocabulary: int | None = None,
    length: int | None = None,
    kind: str | None = None,
) -> Dataset:
    """A data set by its name.

    name: a known one ("digits", "cifar10"), a file ("csv:my.csv", "parquet:my.parquet",
        "npz:my.npz"), "folder:DIR" with images by class, "none" where `clients` has all, or a
        function of your own ("mine:load") that returns a Dataset or (x, y)
    target: the column of a table that is the class
    client: the column that says whose a row is
    split: the column that says train, test or public
    text: the column that is a text, and the only input
    clients: files of one client each, "hospital-*.csv"
    classes: the names of all classes, where the rows may not have them all
    categorical: columns of numbers that are names, such as a postcode
    drop: columns that are no inputs
    vocabulary: of a text, at most so many different words (default: 5000)
    length: of a text, so many words (default: 100)
    kind: of the arrays in an npz: "images", "table", "series" or "tokens"

    Loaded once and shared by all who ask for it (a file until it changes), so do not write into its
    arrays.
    """
    cure = "pass a name such as 'digits'; for arrays use fedsift.make_dataset(x, y)"
    check_type(name, (str, os.PathLike), "name", cure)
    name = os.fspath(name)
    scheme, rest = split_name(name)
    sizes = {"vocabulary": vocabulary, "length": length}
    given: dict[str, Any] = {key: size for key, size in sizes.items() if size is not None}
    columns = Columns(target, client, split, text, tuple(categorical), tuple(drop), **given)
    if scheme in TABLES or clients is not None:
        source = TableSource(name, clients, columns, None if classes is None else tuple(classes))
        return _load_once(_load_tables, source, source.version())
    if columns != Columns(**given) or classes is not None:
        raise UserError(
            f"columns can be named in tables, csv:FILE and parquet:FILE, not in {name!r}; "
            "leave out target, client, split, text, classes, categorical and drop"
        )
    if scheme:
        found = SCHEMES[scheme](rest, kind)
    else:
        found = _load_once(_load_registered, name, find_version(name))
    if given and found.table is not None and found.kind == TOKENS:
        return _resize_text(found, **given)
    if length is not None:
        raise UserError(f"length is for texts; {name!r} holds {found.kind}: leave it out")
    if kind not in (None, found.kind):
        raise UserError(f"{name} holds {found.kind}, not {kind}; leave kind out")
    return found


@lru_cache(maxsize=8)
def _resize_text(data: Dataset, **sizes: Any) -> Dataset:
    """The same texts with another length or vocabulary."""
    if data.table is None:
        return data
    return replace(data, table=replace(data.table, **sizes))


def _load_registered(name: str) -> Dataset:
    """One of DATASETS or a plug-in."""
    found = registry.build(DATASETS, "dataset", name)
    if isinstance(found, Dataset):
        return found
    if isinstance(found, tuple) and len(found) == 2:
        return make_dataset(*found)
    raise UserError(
        f"dataset {name!r} gives {type(found).__name__}; it must give a fedsift.Dataset or (x, y)"
    )


@lru_cache(maxsize=8)
def _load_once(loader: Callable[[Any], Dataset], what: Any, version: tuple[Any, ...]) -> Dataset:
    """One copy in memory for each data set and each version of a file."""
    return loader(what)


@dataclass(frozen=True)
class TableSource:
    """Where a table comes from, and what its columns mean."""

    name: str
    clients: str | None
    columns: Columns
    classes: tuple[str, ...] | None

    def shared(self) -> str | None:
        """The file that is nobody's, or the only one."""
        scheme, rest = split_name(self.name)
        if scheme in TABLES:
            return str(Path(rest).expanduser())
        if self.name != NOTHING:
            raise UserError(
                f"data.clients names one file per client, so data.name must be csv:FILE or "
                f"parquet:FILE with rows for all, or {NOTHING}, not {self.name!r}"
            )
        return None

    def files(self) -> list[Path]:
        return [] if self.clients is None else find_client_files(self.clients)

    def version(self) -> tuple[Any, ...]:
        return tuple(_version(str(file)) for file in (*self.files(), self.shared() or ""))


def _load_tables(source: TableSource) -> Dataset:
    shared = source.shared()
    clients = [(file.stem, read_table(str(file), source.columns)) for file in source.files()]
    found = None if shared is None else read_table(shared, source.columns)
    return load_tables(found, clients, source.columns, source.classes)


def _load_npz(path: str, kind: str | None) -> Dataset:
    path = str(Path(path).expanduser())
    return _load_once(partial(npz, kind=kind) if kind else npz, path, _version(path))


def _load_folder(spec: str, kind: str | None) -> Dataset:
    return image_folders.load_folder(spec)


def _refuse_sheet(path: str, kind: str | None) -> Dataset:
    name = f"sheet:{path}"
    raise UserError(
        f"{name} has no labels, so it can only be a public set: data.public_from={name}"
    )


NOTHING = "none"  # the name of no file: all rows are in those of the clients
TABLES = READERS
# Scheme -> what loads the rest of the name: "npz:my.npz". Any other `word:` is a module's name.
SCHEMES: dict[str, Any] = {
    "npz": _load_npz,
    "folder": _load_folder,
    "sheet": _refuse_sheet,
    **TABLES,
}


def split_name(name: str) -> tuple[str, str]:
    """("npz", "my.npz"), or ("", name) for a registered name or a plug-in."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme in SCHEMES:
        return scheme, rest
    ending = name.rpartition(".")[2]
    return (ending, name) if ending in ("npz", *TABLES) and ending != name else ("", name)


def _file_of(source: str) -> str | None:
    scheme, rest = split_name(source)
    if scheme == "sheet":
        return str(find_sheet(source)[0])
    if scheme:
        return str(Path(rest).expanduser())
    if plugins := registry.find_plugins(source):
        return str(registry.locate_module(plugins[0].partition(":")[0]))
    return str(cache.path(source)) if source in CATALOGUE else None


def _version(path: str | None) -> tuple[Any, ...]:
    """What changes when a file does."""
    if path is None or not Path(path).is_file():
        return (path,)
    now = Path(path).stat()
    return (path, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size)


def find_version(source: str) -> tuple[Any, ...]:
    """What changes when the file behind a name does."""
    return _version(_file_of(source))


def find_sheet(source: str) -> tuple[Path, int, int]:
    """The file, here or else in the data folder, and the height and width of its tiles."""
    name, height, width = _SHEET.fullmatch(source).groups()  # type: ignore[union-attr]
    path = Path(name).expanduser()
    found = next((place for place in (path, cache.folder() / path) if place.is_file()), None)
    if found is None:
        raise UserError(f"no such file: {path}, here or in {cache.folder()}")
    return found, int(height or 32), int(width or height or 32)


_SHEET = re.compile(r"sheet:(.*?)(?:\((\d+)(?:x(\d+))?\))?", re.DOTALL)
