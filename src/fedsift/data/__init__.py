"""Data sets, and their split into private, public and test parts that never overlap."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedsift import registry, seeding
from fedsift.checks import check_type, check_whole, count, describe, warn_user
from fedsift.data import cache, images
from fedsift.data.catalogue import CATALOGUE
from fedsift.types import Array, Labelled, Samples, Store, UserError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays as they came: x [S, ...] uint8 or float, y [S] class numbers. See `make_dataset`."""

    x: Array
    y: Array
    classes: int
    test: tuple[Array, Array] | None = None  # an official test set, where there is one
    public: Array | None = None  # unlabelled samples of their own, where there are some

    def __repr__(self) -> str:
        size = f"{len(self.x)} samples of shape {self.x.shape[1:]}, {self.classes} classes"
        test = "" if self.test is None else f", {len(self.test[0])} for the test"
        public = "" if self.public is None else f", {len(self.public)} public"
        return f"Dataset({size}{test}{public})"


@dataclass(frozen=True, eq=False)
class Task:
    """The three parts. `public` has no labels at all: what is not there cannot leak."""

    private: Labelled
    public: Samples
    test: Labelled

    def __repr__(self) -> str:
        sizes = f"{len(self.private)} private, {len(self.public)} public, {len(self.test)} test"
        return f"Task({sizes}, shape {self.public.shape}, {self.private.classes} classes)"

    def normalise(self, x: Any) -> torch.Tensor:
        """New raw inputs as the trained network expects them: `net(task.normalise(x))`.

        x: samples [S, ...] in the values and one of the shapes that `make_dataset` takes
        """
        samples = self.private.samples
        inputs = _inputs("x", x)
        if inputs.shape[1:] != samples.shape:
            raise UserError(
                f"x has samples of shape {inputs.shape[1:]}, the task of shape {samples.shape}; "
                "the first dimension of x counts the samples"
            )
        return samples.store.normalise(torch.from_numpy(inputs))


def make_dataset(
    x: Any,
    y: Any,
    classes: int | None = None,
    *,
    test: tuple[Any, Any] | None = None,
    public: Any = None,
) -> Dataset:
    """A data set of your own arrays or tensors.

    x: images [S, H, W], [S, H, W, channels] or [S, channels, H, W], or rows [S, F]
    y: the class number of each sample, [S], counted from 0
    classes: how many classes there are, where y does not have them all
    test: (x, y) of an official test set
    public: samples without labels, for the public part
    """
    x, y = _inputs("x", x), _labels("y", y)
    parts = {"x": (x, y)}
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise UserError(f"test is {describe(test)}; pass test=(x_test, y_test)")
        test = _inputs("test x", test[0]), _labels("test y", test[1])
        parts["test"] = test
    for name, (inputs, labels) in parts.items():
        if len(inputs) != len(labels):
            raise UserError(f"{name} has {len(inputs)} samples but {len(labels)} labels")
    public = None if public is None else _inputs("public", public)
    classes = _count_classes([labels for _, labels in parts.values()], classes)
    for name, other in (("test x", None if test is None else test[0]), ("public", public)):
        if other is not None and other.shape[1:] != x.shape[1:]:
            raise UserError(
                f"{name} has samples of shape {other.shape[1:]}, x of shape {x.shape[1:]}"
            )
    return Dataset(x, y, classes, test, public)


MOST_CLASSES = 100_000  # a label is stored as one float per class
NUMBER_THEM = "number them 0, 1, ..., for example with np.unique(y, return_inverse=True)[1]"


def _count_classes(parts: list[Array], classes: int | None) -> int:
    """From the labels, or as given; labels with gaps are most often an oversight."""
    seen = np.unique(np.concatenate(parts))
    highest = int(seen.max(initial=0)) + 1
    if classes is None:
        _check_gaps(seen, highest)
        return max(highest, 2)
    check_whole("classes", classes, 1)
    if classes < highest:
        raise UserError(
            f"labels go up to {highest - 1}, so there are at least {highest} classes, not {classes}"
        )
    if classes > max(MOST_CLASSES, 10 * len(seen)):
        raise UserError(f"classes must be at most {MOST_CLASSES}, not {classes}")
    return max(classes, 2)


def _check_gaps(seen: Array, highest: int) -> None:
    """Refuse labels that are no class numbers; warn of classes that never occur."""
    if highest > max(1000, 10 * len(seen)):
        only = f"labels go up to {highest - 1}, but only {len(seen)} different ones occur"
        raise UserError(f"{only}; {NUMBER_THEM}")
    if highest == 1:
        warn_user("all labels are 0: there is one class, and nothing to learn")
    elif len(seen) == highest - 1 and seen[0] == 1:
        warn_user("class 0 never occurs in y: did you mean y - 1?")
    elif len(seen) < highest:
        gaps = np.setdiff1d(np.arange(highest), seen)
        few = ", ".join(map(str, gaps[:3])) + (", ..." if len(gaps) > 3 else "")
        warn_user(
            f"{len(gaps)} of {highest} classes never occur in y ({few}); if they do not exist, "
            f"{NUMBER_THEM}, else give classes={highest}"
        )


def digits() -> Dataset:
    """1,797 handwritten digits, 8x8 with 17 grey levels. E. Alpaydin and C. Kaynak, Optical
    Recognition of Handwritten Digits, UCI Machine Learning Repository (1998),
    doi.org/10.24432/C50P49, CC BY 4.0."""
    with (
        resources.files("fedsift.data").joinpath("digits.npz").open("rb") as file,
        np.load(file) as arrays,
    ):
        return make_dataset(arrays["x"], arrays["y"])


def npz(path: str) -> Dataset:
    """An .npz with `x` and `y`, and optionally `x_test` and `y_test`, `x_public`, `classes`."""
    found = _read_npz(path)
    if missing := {"x", "y"} - found.keys():
        raise UserError(
            f"{path} has no array {sorted(missing)[0]!r}; it needs x and y (found: "
            f"{', '.join(found)})"
        )
    if ("x_test" in found) != ("y_test" in found):
        raise UserError(f"{path} has one of x_test and y_test; a test set needs both")
    if "classes" in found and (
        found["classes"].size != 1 or found["classes"].dtype.kind not in "ui"
    ):
        raise UserError(f"{path}: classes must be one whole number")
    classes = int(found["classes"].item()) if "classes" in found else None
    return _from_arrays(found, classes)


def _read_npz(path: str) -> dict[str, Array]:
    name = ""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise UserError(
                    f"{path} is not an npz file; write one with np.savez(path, x=x, y=y)"
                )
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


def load_fetched(name: str) -> Dataset:
    """A published data set that `fedsift data get` has put into the data folder."""
    path = cache.path(name)
    try:
        return _from_arrays(cache.read(path), CATALOGUE[name].classes)
    except FileNotFoundError:
        raise UserError(f"{name} is not in {path.parent}; run: fedsift data get {name}") from None
    except UserError as error:
        raise UserError(f"{error}; run: fedsift data get {name}") from None


def _from_arrays(found: dict[str, Array], classes: int | None) -> Dataset:
    test = (found["x_test"], found["y_test"]) if "x_test" in found else None
    return make_dataset(found["x"], found["y"], classes, test=test, public=found.get("x_public"))


DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits} | {
    name: partial(load_fetched, name) for name in CATALOGUE
}


def load_dataset(name: str | os.PathLike[str]) -> Dataset:
    """A data set by its name.

    name: a known one ("digits", "cifar10"), a file ("npz:my.npz", "my.npz"), or a function of
        your own ("mine:load") that returns a Dataset or (x, y)

    Loaded once and shared by all who ask for it (a file until it changes), so do not write into its
    arrays.
    """
    cure = "pass a name such as 'digits'; for arrays use fedsift.make_dataset(x, y)"
    check_type(name, (str, os.PathLike), "name", cure)
    name = os.fspath(name)
    scheme, rest = _scheme(name)
    if scheme:
        return SCHEMES[scheme](rest)
    return _load_once(_load_registered, name, _version(_file_of(name)))


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
def _load_once(loader: Callable[[str], Dataset], what: str, version: tuple[Any, ...]) -> Dataset:
    """One copy in memory for each data set and each version of a file."""
    return loader(what)


def _load_npz(path: str) -> Dataset:
    path = str(Path(path).expanduser())
    return _load_once(npz, path, _version(path))


def _refuse_sheet(path: str) -> Dataset:
    name = f"sheet:{path}"
    raise UserError(
        f"{name} has no labels, so it can only be a public set: data.public_from={name}"
    )


# Scheme -> what loads the rest of the name: "npz:my.npz". Any other `word:` is a module's name.
SCHEMES: dict[str, Callable[[str], Dataset]] = {"npz": _load_npz, "sheet": _refuse_sheet}


def _scheme(name: str) -> tuple[str, str]:
    """("npz", "my.npz"), or ("", name) for a registered name or a plug-in."""
    scheme, colon, rest = name.partition(":")
    if colon and scheme in SCHEMES:
        return scheme, rest
    return ("npz", name) if name.endswith(".npz") else ("", name)


def _file_of(source: str) -> str | None:
    scheme, rest = _scheme(source)
    if scheme == "sheet":
        return str(_sheet(source)[0])
    if scheme:
        return rest
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


def split(
    data: Dataset,
    private: int,
    public: int,
    test: int | None = None,
    seed: int = 0,
    normalise: str = "scale",
) -> Task:
    """Disjoint parts, drawn at random.

    data: what `load_dataset` or `make_dataset` gave
    private: how many samples are dealt to the clients
    public: how many samples every party knows; their labels are left out
    test: how many samples are for the test (default: the official test set, or what is left)
    seed: of the draw
    normalise: "scale" divides by the largest value; "standard" gives mean 0 and deviation 1 per
        channel

    Where the public part comes from elsewhere, the samples that would have been public are left
    out, unless too few would be left. So the private and the test part are the same with every
    public set.

    Inputs are normalised by figures taken from the *public* part, the one part every party knows.
    `Task.normalise` does the same to new inputs.
    """
    name = repr(data) if isinstance(data, str) else "'digits'"
    cure = f"pass a data set, fedsift.load_dataset({name}) or fedsift.make_dataset(x, y)"
    check_type(data, Dataset, "data", cure)
    check_whole("seed", seed)
    order = seeding.rng(seed, "split").permutation(len(data.x))
    for name, size in (("private", private), ("public", public)):
        check_whole(name, size)
        if size < 1:
            raise UserError(f"the {name} part needs at least one sample, not {size}")
    if test is not None:
        check_whole("test", test)
    own_public = data.public is None
    needed = private + (public if own_public else 0)
    if needed > len(order):
        parts = f"private {private} + public {public}" if own_public else f"private {private}"
        raise UserError(f"{needed} samples asked for ({parts}), {len(order)} there")
    if data.public is not None and public > len(data.public):
        raise UserError(f"{public} public samples asked for, {len(data.public)} there")
    private_rows, rest = order[:private], order[private:]
    if data.public is None:
        shared, public_rows, rest = data.x, rest[:public], rest[public:]
    else:
        shared, public_rows = (
            data.public,
            seeding.rng(seed, "public").permutation(len(data.public))[:public],
        )
        rest = rest[public:] if len(rest) >= public + (test or 1) else rest
    tested, truth = (data.x, data.y) if data.test is None else data.test
    test_rows = rest if data.test is None else seeding.rng(seed, "test").permutation(len(tested))
    if not 0 < (len(test_rows) if test is None else test) <= len(test_rows):
        asked = "at least 1" if test is None else test
        raise UserError(
            f"{len(test_rows)} samples left for the test part, {asked} needed; make private "
            "or public smaller"
        )
    mean, std = registry.lookup(NORMALISATIONS, "normalisation", normalise, "standard or scale")(
        shared[public_rows]
    )
    stores = {
        id(array): Store(torch.from_numpy(array), mean, std) for array in (data.x, shared, tested)
    }
    return Task(
        _take_labelled(stores[id(data.x)], private_rows, data.y, data.classes),
        Samples(stores[id(shared)], public_rows),
        _take_labelled(stores[id(tested)], test_rows[:test], truth, data.classes),
    )


def _take_labelled(store: Store, rows: Array, labels: Array, classes: int) -> Labelled:
    return Labelled(
        Samples(store, rows), F.one_hot(torch.from_numpy(labels[rows]), classes).float()
    )


def _standard(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Per channel of images, per column of rows; a constant one is only centred."""
    axes, shape = ((0, 2, 3), (-1, 1, 1)) if x.ndim == 4 else ((0,), (-1,))
    mean = np.mean(x, axis=axes, dtype=np.float64, keepdims=True)
    squares = sum(
        np.square(x[start : start + 1000] - mean).sum(axes) for start in range(0, len(x), 1000)
    )
    std = np.sqrt(squares / (x.size // mean.size)).reshape(shape)
    return torch.from_numpy(mean.reshape(shape)).float(), torch.from_numpy(
        np.where(std > 1e-8, std, 1.0)
    ).float()


def _scale(x: Array) -> tuple[torch.Tensor, torch.Tensor]:
    largest = max(float(x.max()), -float(x.min())) or 1.0
    return torch.tensor(0.0), torch.tensor(largest)


NORMALISATIONS = {"standard": _standard, "scale": _scale}


def _inputs(name: str, x: Any) -> Array:
    x = _array(name, x)
    if x.ndim and not len(x):
        raise UserError(f"{name} is empty; give it at least one sample, or leave it out")
    if x.ndim == 3:
        x = x[:, None]
    if (
        x.ndim == 4
        and x.shape[-1] <= 4
        and (x.shape[1] > 4 or (x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3)))
    ):
        x = np.moveaxis(x, -1, 1)
    if x.ndim not in (2, 4) or x.dtype.kind not in "buif":
        raise UserError(
            f"{name} must be numbers [S, features] or images [S, H, W(, channels)], not "
            f"{x.dtype} {x.shape}"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
        x = np.require(x, np.uint8 if x.dtype == np.uint8 else np.float32, ["C", "W"])
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        odd = ~np.isfinite(x.reshape(len(x), -1))
        rows = np.flatnonzero(odd.any(1))
        raise UserError(
            f"{name} has {count(int(odd.sum()), 'value that is', 'values that are')} not"
            " finite, in "
            f"{count(len(rows), 'sample')} (first: sample {rows[0]}); fill them in, or leave"
            " these out"
        )
    return x


def _labels(name: str, y: Any) -> Array:
    y = _array(name, y)
    if y.ndim != 1 or y.dtype.kind not in "bui":
        raise UserError(
            f"{name} must be class numbers 0, 1, ... in one dimension, not {y.dtype} {y.shape}; "
            f"{_label_cure(y)}"
        )
    if len(y) and y.min() < 0:
        below = np.flatnonzero(y < 0)
        raise UserError(
            f"{name} has {count(len(below), 'label')} below 0 (first: {y[below[0]]} at sample"
            f" {below[0]}); "
            f"leave these samples out, or {NUMBER_THEM}"
        )
    if y.dtype == np.uint64:
        y = np.minimum(y, np.uint64(2**63 - 1))
    return y.astype(np.int64)


def _label_cure(y: Array) -> str:
    """What to do with labels that are not class numbers."""
    if y.ndim == 2:
        return f"use {'y[:, 0]' if y.shape[1] == 1 else 'y.argmax(1) if the rows are one-hot'}"
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.round(y)).all():
        return "use y.astype(int)"
    return NUMBER_THEM


def _array(name: str, values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except Exception as error:  # ragged lists, tensors of types that numpy does not have
        raise UserError(f"{name} is {describe(values)} that is no array: {error}") from None
