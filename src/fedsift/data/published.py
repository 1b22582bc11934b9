"""What is known of a published data set: where its files are, what is in them, how it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsift.data import cache
from fedsift.data.dataset import SERIES, Dataset, make_dataset
from fedsift.data.formats.folder import Folder
from fedsift.data.formats.mails import SEPARATOR
from fedsift.data.sources import load_tables
from fedsift.data.table import Columns, make_table, words
from fedsift.types import Array, UserError

Reader = Callable[[Folder], dict[str, Array]]

_MEAN_TOLERANCE = 0.005
_OVERHEAD = 16 << 20  # bytes of file names, labels and headers a file may have on top of its pixels


@dataclass(frozen=True)
class File:
    """A published file: its addresses, the official one first, its size and its SHA-256."""

    urls: tuple[str, ...]
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """A package that holds the data set; valid only if its content is the official one."""

    spec: str
    names: tuple[str, ...]  # of the files that are read; they may be patterns, "*.json"
    read: Reader


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A published data set. `digest` is of its arrays (`cache.digest`), for sets we obtained."""

    about: str
    read: Reader
    files: tuple[File, ...] = ()
    folders: tuple[str, ...] = ()  # what the files usually lie in
    names: tuple[str, ...] = ()  # the files that are read, in any of the formats
    digest: str | None = None
    npm: Package | None = None
    pypi: Package | None = None
    download: int = 0  # bytes, where there are no files of its own but a package

    @property
    def packages(self) -> dict[str, Package]:
        """By who publishes them."""
        known = {"npm": self.npm, "PyPI": self.pypi}
        return {way: package for way, package in known.items() if package is not None}

    @property
    def download_bytes(self) -> int:
        return sum(file.size for file in self.files) or self.download

    @property
    def largest_file(self) -> int:
        """Bytes that one of its files may have."""
        return _OVERHEAD

    @property
    def all_files(self) -> int:
        """Bytes that all of its files may have."""
        return 8 * _OVERHEAD

    def check(self, arrays: dict[str, Array]) -> None:
        """Refuses arrays that are not this data set."""
        if self.digest and cache.digest(arrays) != self.digest:
            raise UserError("it differs from the official one in places")

    def load(self, arrays: dict[str, Array]) -> Dataset:
        """The data set of checked arrays."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ImageSet(DatasetInfo):
    """Images with official training and test parts, and maybe some without labels."""

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int
    means: tuple[float, ...]  # of the channels of the training images, scaled to [0, 1]
    unlabelled: int = 0

    @property
    def largest_file(self) -> int:
        return max(self.train, self.test, self.unlabelled) * int(np.prod(self.shape)) + _OVERHEAD

    @property
    def all_files(self) -> int:
        return (self.train + self.test + self.unlabelled) * int(np.prod(self.shape)) + 8 * _OVERHEAD

    def check(self, arrays: dict[str, Array]) -> None:
        sizes = {"x": self.train, "y": self.train, "x_test": self.test, "y_test": self.test}
        sizes |= {"x_public": self.unlabelled} if self.unlabelled else {}
        for name, size in sizes.items():
            shape = (size, *self.shape) if name.startswith("x") else (size,)
            _check_array(arrays, name, shape, np.uint8)
        if max(int(arrays["y"].max()), int(arrays["y_test"].max())) >= self.classes:
            raise UserError(f"there are labels above {self.classes - 1}")
        means = arrays["x"].mean((0, 2, 3), dtype=np.float64) / 255
        if np.abs(means - self.means).max() > _MEAN_TOLERANCE:
            raise UserError(
                f"the channel means should be {self.means}; found {tuple(means.round(4).tolist())}"
            )
        if self.digest and cache.digest(arrays) != self.digest:
            raise UserError("the images or labels differ from the official ones in places")

    def load(self, arrays: dict[str, Array]) -> Dataset:
        test = (arrays["x_test"], arrays["y_test"])
        public = arrays.get("x_public")
        return make_dataset(arrays["x"], arrays["y"], self.classes, test=test, public=public)


@dataclass(frozen=True, kw_only=True)
class SeriesSet(DatasetInfo):
    """Series [S, steps, features] with official training and test parts."""

    shape: tuple[int, int]
    classes: int
    train: int
    test: int

    def check(self, arrays: dict[str, Array]) -> None:
        for name, size in (("x", self.train), ("x_test", self.test)):
            _check_array(arrays, name, (size, *self.shape), np.float32)
            _check_array(arrays, name.replace("x", "y"), (size,), np.uint8)
        super().check(arrays)

    def load(self, arrays: dict[str, Array]) -> Dataset:
        test = (arrays["x_test"], arrays["y_test"])
        return make_dataset(arrays["x"], arrays["y"], self.classes, test=test, kind=SERIES)


@dataclass(frozen=True, kw_only=True)
class TextSet(DatasetInfo):
    """Texts with a class each: `x` is all of them as UTF-8 bytes, one after another."""

    classes: tuple[str, ...]
    texts: int

    def check(self, arrays: dict[str, Array]) -> None:
        _check_array(arrays, "y", (self.texts,), np.uint8)
        if "x" not in arrays or arrays["x"].dtype != np.uint8 or arrays["x"].ndim != 1:
            raise UserError("x should be the bytes of all texts")
        super().check(arrays)

    def load(self, arrays: dict[str, Array]) -> Dataset:
        columns = {
            "text": words(arrays["x"].tobytes().decode().split(SEPARATOR)),
            "class": words([self.classes[number] for number in arrays["y"]]),
        }
        return load_tables(make_table("mails", columns), [], Columns(target="class", text="text"))


def _check_array(arrays: dict[str, Array], name: str, shape: tuple[int, ...], dtype: type) -> None:
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != dtype:
        said = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise UserError(f"{name} should be {np.dtype(dtype)} {shape}; found {said}")
