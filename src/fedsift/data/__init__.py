"""Data sets: the digits, published ones, files and functions of your own.

dataset  a data set as arrays
task     its split into parts that never overlap
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsift import registry
from fedsift.checks import check_type
from fedsift.data import cache, image_folders, images, toys
from fedsift.data.catalogue import CATALOGUE
from fedsift.data.dataset import NUMBER_THEM, TOKENS, as_tokens
from fedsift.data.dataset import Dataset as Dataset
from fedsift.data.dataset import make_dataset as make_dataset
from fedsift.data.formats.tables import READERS
from fedsift.data.ranges import compare_inputs as compare_inputs
from fedsift.data.rows import TEST as TEST
from fedsift.data.rows import VALIDATION as VALIDATION
from fedsift.data.sources import find_client_files, load_tables, read_table
from fedsift.data.table import Columns
from fedsift.data.task import NORMALISATIONS as NORMALISATIONS
from fedsift.data.task import Task as Task
from fedsift.data.task import split as split
from fedsift.types import Array, UserError

MOST_UNPACKED = 2**30  # bytes of a compressed file that is never refused
MOST_COMPRESSED = 100  # to one, of a larger one


def digits() -> Dataset:
    """1,797 handwritten digits, 8x8 with 17 grey levels. E. Alpaydin and C. Kaynak, Optical
    Recognition of Handwritten Digits, UCI Machine Learning Repository (1998),
    doi.org/10.24432/C50P49, CC BY 4.0."""
    return make_dataset(*_read_packed("digits.npz"))


def breast_cancer() -> Dataset:
    """569 tumours, benign or malignant, by 30 measures of cell nuclei. W. Wolberg, O. Mangasarian,
    N. Street and W. Street, Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository
    (1993), doi.org/10.24432/C5DW2B, CC BY 4.0."""
    x, y = _read_packed("breast_cancer.npz")
    return make_dataset(x, np.array(["benign", "malignant"])[y])


def _read_packed(name: str) -> tuple[Array, Array]:
    """Samples and labels that come with fedsift."""
    with (
        resources.files("fedsift.data").joinpath(name).open("rb") as file,
        np.load(file) as arrays,
    ):
        return arrays["x"], arrays["y"]


ARRAYS = ("x", "y", "x_test", "y_test", "x_public", "classes", "client", "vocabulary")


def npz(path: str, kind: str | None = None) -> Dataset:
    """An .npz with `x` and `y`, and optionally `x_test` and `y_test`, `x_public`, `classes`,
    `client` and `vocabulary`.
    """
    found = _read_npz(path)
    if missing := {"x", "y"} - found.keys():
        raise UserError(
            f"{path} has no array {sorted(missing)[0]!r}; it needs x and y (found: "
            f"{', '.join(found)})"
        )
    if ("x_test" in found) != ("y_test" in found):
        raise UserError(f"{path} has one of x_test and y_test; a test set needs both")
    numbers = {name: _read_number(path, name, found) for name in ("classes", "vocabulary")}
    made = _from_arrays(found, numbers["classes"], kind)
    made = as_tokens(made, numbers["vocabulary"]) if kind == TOKENS else made
    others = [name for name in found if name not in ARRAYS]
    told = (f"{path}: not used: {', '.join(others)} (known: {', '.join(ARRAYS)})",)
    return replace(
        made, vocabulary=numbers["vocabulary"], notes=made.notes + (told if others else ())
    )


def _read_number(path: str, name: str, found: dict[str, Array]) -> int | None:
    if name not in found:
        return None
    if found[name].size != 1 or found[name].dtype.kind not in "ui":
        raise UserError(f"{path}: {name} must be one whole number")
    return int(found[name].item())


def _read_npz(path: str) -> dict[str, Array]:
    name = ""
    if Path(path).exists() and not Path(path).is_file():  # a device may have no end
        raise UserError(f"{path} is not a plain file, so it is not an npz file")
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise UserError(
                    f"{path} is not an npz file; write one with np.savez(path, x=x, y=y)"
                )
            _check_unpacked(file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                found = {}
                for name in arrays.files:
                    found[name] = arrays[name]
                return found
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except UserError:
        raise
    except Exception as error:  # numpy raises half a dozen types on files that are not npz
        if "allow_pickle" in str(error):
            cure = NUMBER_THEM if name.startswith("y") else "save an array of numbers"
            raise UserError(f"{path}: {name} holds Python objects, not numbers; {cure}") from None
        raise UserError(f"cannot read {path} as an npz file: {error}") from None


def _check_unpacked(file: IO[bytes]) -> None:
    """Arrays may be compressed, but not so well that a small file fills the memory."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    packed = file.seek(0, os.SEEK_END)
    if unpacked > max(MOST_UNPACKED, MOST_COMPRESSED * packed):
        raise UserError(
            f"{file.name} has {packed:,} bytes and would unpack to {unpacked:,}; if it is yours, "
            "write it with np.savez, which does not compress"
        )


def load_fetched(name: str) -> Dataset:
    """A published data set that `fedsift data get` has put into the data folder."""
    path = cache.path(name)
    try:
        return _from_arrays(cache.read(path), CATALOGUE[name].classes)
    except FileNotFoundError:
        raise UserError(f"{name} is not in {path.parent}; run: fedsift data get {name}") from None
    except UserError as error:
        raise UserError(f"{error}; run: fedsift data get {name}") from None


def _from_arrays(found: dict[str, Array], classes: int | None, kind: str | None = None) -> Dataset:
    test = (found["x_test"], found["y_test"]) if "x_test" in found else None
    public, client = found.get("x_public"), found.get("client")
    return make_dataset(
        found["x"], found["y"], classes, test=test, public=public, client=client, kind=kind
    )


BUNDLED: dict[str, Callable[[], Dataset]] = {
    "breast-cancer": breast_cancer,
    "clinics": toys.clinics,
    "messages": toys.messages,
}
DATASETS: dict[str, Callable[[], Dataset]] = (
    {"digits": digits} | BUNDLED | {name: partial(load_fetched, name) for name in CATALOGUE}
)


IMAGE_SETS = frozenset({"digits", *CATALOGUE})


def is_table(name: Any) -> bool:
    """Whether a name is of a table, a text or a folder: data without a usual size."""
    return isinstance(name, str) and (_scheme(name)[0] in ("folder", *TABLES) or name in BUNDLED)


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
    scheme, rest = _scheme(name)
    sizes = {"vocabulary": vocabulary, "length": length}
    given = {key: size for key, size in sizes.items() if size is not None}
    columns = Columns(target, client, split, text, tuple(categorical), tuple(drop), **given)
    if scheme in TABLES or clients is not None:
        source = TableSource(name, clients, columns, None if classes is None else tuple(classes))
        return _load_once(_load_tables, source, source.version())
    if columns != Columns(vocabulary=columns.vocabulary) or classes is not None:
        raise UserError(
            f"columns can be named in tables, csv:FILE and parquet:FILE, not in {name!r}; "
            "leave out target, client, split, text, classes, categorical and drop"
        )
    if scheme:
        found = SCHEMES[scheme](rest, kind)
    else:
        found = _load_once(_load_registered, name, _version(_file_of(name)))
    if kind not in (None, found.kind):
        raise UserError(f"{name} holds {found.kind}, not {kind}; leave kind out")
    return found


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
        scheme, rest = _scheme(self.name)
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
    clients = [(file.stem, read_table(str(file))) for file in source.files()]
    found = None if shared is None else TABLES[_scheme(source.name)[0]](shared)
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


def _scheme(name: str) -> tuple[str, str]:
    """("npz", "my.npz"), or ("", name) for a registered name or a plug-in."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme in SCHEMES:
        return scheme, rest
    ending = name.rpartition(".")[2]
    return (ending, name) if ending in ("npz", *TABLES) and ending != name else ("", name)


def _file_of(source: str) -> str | None:
    scheme, rest = _scheme(source)
    if scheme == "sheet":
        return str(_sheet(source)[0])
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


def add_public(data: Dataset, source: str) -> Dataset:
    """The same data with a fitted public set: a data set (its labels are not used) or a sheet."""
    if data.table is not None:
        raise UserError(
            "data.public_from is for images; for a table mark rows as public with data.split, or"
            " leave their class empty"
        )
    return _add_public(data, source, _version(_file_of(source)))


@lru_cache(maxsize=4)
def _add_public(data: Dataset, source: str, version: tuple[Any, ...]) -> Dataset:
    return replace(data, public=images.fit_images(load_unlabelled(source), data.x))


def load_unlabelled(source: str) -> Array:
    """A data set's images (the unlabelled, if it has some) or the tiles of "sheet:FILE(size)"."""
    if _scheme(source)[0] != "sheet":
        data = load_dataset(source)
        return data.x if data.public is None else data.public
    return images.cut_tiles(*_sheet(source))


def _sheet(source: str) -> tuple[Path, int, int]:
    """The file, here or else in the data folder, and the height and width of its tiles."""
    name, height, width = _SHEET.fullmatch(source).groups()  # type: ignore[union-attr]
    path = Path(name).expanduser()
    found = next((place for place in (path, cache.folder() / path) if place.is_file()), None)
    if found is None:
        raise UserError(f"no such file: {path}, here or in {cache.folder()}")
    return found, int(height or 32), int(width or height or 32)


_SHEET = re.compile(r"sheet:(.*?)(?:\((\d+)(?:x(\d+))?\))?", re.DOTALL)


PICTURES = (".png", ".jpg", ".jpeg")
MOST_PICTURES = 100_000


def load_inputs(path: Path) -> tuple[Array, list[str]]:
    """New samples without labels, and what to call each: its number, or the name of its file.

    path: FILE.npz with an array x, FILE.npy, a picture, or a folder of pictures of one size
    """
    if path.is_dir():
        return _load_pictures(path)
    if not path.exists():
        raise UserError(f"no such file: {path}")
    kind = path.suffix.lower()
    if kind in PICTURES:
        return images.read_pixels(path)[None], [path.name]
    if kind == ".npz":
        found = _read_npz(str(path))
        if "x" not in found:
            raise UserError(f"{path} has no array x; write it with np.savez(path, x=x)")
        x = found["x"]
    elif kind == ".npy":
        x = _read_npy(path)
    else:
        raise UserError(f"{path} is not of a known kind; give FILE.npz, FILE.npy or pictures")
    return x, [str(number) for number in range(len(x) if x.ndim else 0)]


def _load_pictures(folder: Path) -> tuple[Array, list[str]]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    if not 0 < len(found) <= MOST_PICTURES:
        raise UserError(
            f"{folder} has {len(found)} pictures ({', '.join(PICTURES)}); "
            f"1 to {MOST_PICTURES:,} are needed"
        )
    read = [images.read_pixels(path) for path in found]
    odd = next(
        (path for path, x in zip(found, read, strict=True) if x.shape != read[0].shape), None
    )
    if odd is not None:
        raise UserError(
            f"{odd} has another size or other channels than {found[0]}; make them alike"
        )
    return np.stack(read), [path.name for path in found]


def _read_npy(path: Path) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises half a dozen types on files that are not npy
        raise UserError(f"cannot read {path} as a npy file: {error}") from None
    if not isinstance(found, np.ndarray):
        raise UserError(f"{path} is a npz file; call it FILE.npz")
    return found
