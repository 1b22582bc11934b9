"""A data set as arrays: samples, class numbers and, where they exist, official parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedsift.checks import check_whole, count, describe, warn_user
from fedsift.types import Array, UserError

if TYPE_CHECKING:
    from fedsift.data.table import Table

IMAGES, TABLE, SERIES, TOKENS = "images", "table", "series", "tokens"
KINDS = (IMAGES, TABLE, SERIES, TOKENS)
ANYWHERE, TRAIN, TEST_PART, PUBLIC = range(4)  # where a sample may go
PARTS = {"train": TRAIN, "test": TEST_PART, "public": PUBLIC}
MOST_TOKENS = 1_000_000  # different ids: each has a row in the embedding of every client
SHOWN = 8  # names that a note lists


@dataclass(frozen=True, eq=False)
class Owners:
    """Which client each sample belongs to: a number into `names`, or -1 for nobody's."""

    numbers: Array  # [S] int64
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays as they came: x [S, ...] uint8 or float, y [S] class numbers. See `make_dataset`.

    Where there is a `table`, x has no columns: `split` makes them, once it knows the public rows.
    A sample without a label has class -1, and is public.
    """

    x: Array  # [S, ...] uint8 or float
    y: Array  # [S] class numbers; -1: none
    classes: int  # how many there are
    test: tuple[Array, Array] | None = None  # an official test set, where there is one
    public: Array | None = None  # unlabelled samples of their own, where there are some
    kind: str = IMAGES  # one of KINDS
    names: tuple[str, ...] | None = None  # of the classes
    owners: Owners | None = None
    part: Array | None = None  # [S]: where each sample must go, where the data say
    table: Table | None = None
    integers: bool = False  # rows of whole numbers from 0 on: they may be token ids
    vocabulary: int | None = None  # token ids are below this
    notes: tuple[str, ...] = ()  # what was found and done, in words

    def __repr__(self) -> str:
        shape = self.x.shape[1:] if self.table is None else f"{len(self.table.columns)} columns"
        size = f"{len(self.x)} samples of shape {shape}, {self.classes} classes"
        size = size if self.table is None else size.replace("of shape", "of")
        test = "" if self.test is None else f", {len(self.test[0])} for the test"
        public = "" if self.public is None else f", {len(self.public)} public"
        clients = "" if self.owners is None else f", {len(self.owners.names)} clients"
        return f"Dataset({size}{test}{public}{clients})"


def make_dataset(
    x: Any,
    y: Any,
    classes: int | None = None,
    *,
    test: tuple[Any, Any] | None = None,
    public: Any = None,
    client: Any = None,
    kind: str | None = None,
    vocabulary: int | None = None,
) -> Dataset:
    """A data set of your own arrays or tensors.

    x: images [S, H, W], [S, H, W, channels] or [S, channels, H, W], rows [S, F], token ids [S, T],
        or with kind="series" series [S, steps, features]
    y: the class of each sample, [S]: numbers from 0, numbers from 1, or names
    classes: how many classes there are, where y does not have them all
    test: (x, y) of an official test set
    public: samples without labels, for the public part
    client: the client of each sample, [S]: numbers or names (default: a partition deals them)
    kind: "images", "table", "series" or "tokens", where the shape does not say it
    vocabulary: how many token ids there are (default: as many as occur)
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"kind is {describe(kind)}; it must be one of {', '.join(KINDS)}")
    x, whole = read_inputs("x", x, kind), _is_whole(x)
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise UserError(f"test is {describe(test)}; pass test=(x_test, y_test)")
    given = {"y": y} if test is None else {"y": y, "test y": test[1]}
    labels, classes, names, notes = read_labels(given, classes)
    parts = {"x": (x, labels["y"])}
    if test is not None:
        test = read_inputs("test x", test[0], kind), labels["test y"]
        parts["test"] = test
    for name, (inputs, found) in parts.items():
        if len(inputs) != len(found):
            raise UserError(f"{name} has {len(inputs)} samples but {len(found)} labels")
    public = None if public is None else read_inputs("public", public, kind)
    for name, other in (("test x", None if test is None else test[0]), ("public", public)):
        if other is not None and other.shape[1:] != x.shape[1:]:
            raise UserError(
                f"{name} has samples of shape {other.shape[1:]}, x of shape {x.shape[1:]}"
            )
    owners = None if client is None else read_owners(client, len(x))
    kind = kind or (TABLE if x.ndim == 2 else IMAGES)
    whole = whole and x.ndim == 2
    made = Dataset(
        x, labels["y"], classes, test, public, kind, names, owners, integers=whole, notes=notes
    )
    return as_tokens(made, vocabulary) if kind == TOKENS else made


def as_tokens(data: Dataset, vocabulary: int | None = None) -> Dataset:
    """The same data with inputs that are token ids: they stay whole numbers."""
    arrays = [data.x, *([] if data.test is None else [data.test[0]])]
    arrays += [] if data.public is None else [data.public]
    highest = int(max(array.max() for array in arrays))
    if data.x.ndim != 2 or any((array < 0).any() for array in arrays):
        raise UserError("token ids are rows [S, T] of whole numbers from 0 on")
    if any((array != np.round(array)).any() for array in arrays):
        raise UserError("token ids are whole numbers; x has fractions")
    size = highest + 1 if vocabulary is None else vocabulary
    check_whole("vocabulary", size, 2)
    if not highest < size <= MOST_TOKENS:
        raise UserError(
            f"token ids go up to {highest}; the vocabulary must be larger than that, "
            f"and at most {MOST_TOKENS:,}, not {size:,}"
        )
    x, *others = (array.astype(np.int32) for array in arrays)
    test = None if data.test is None else (others[0], data.test[1])
    public = None if data.public is None else others[-1]
    return replace(data, x=x, test=test, public=public, kind=TOKENS, vocabulary=size)


def _is_whole(x: Any) -> bool:
    """Whether inputs came as whole numbers from 0 on."""
    array = _array("x", x)
    return array.dtype.kind in "ui" and bool(array.size) and int(array.min()) >= 0


def read_owners(client: Any, samples: int) -> Owners:
    """The client of each sample, by number or name; an empty name is nobody's."""
    given = _array("client", client)
    if given.ndim != 1 or len(given) != samples or given.dtype.kind not in "buiUSO":
        raise UserError(
            f"client must name the client of each of the {samples} samples by a number or a word, "
            f"not {given.dtype} {given.shape}"
        )
    words = given.astype(np.int64) if given.dtype.kind in "bui" else given.astype(str)
    names, numbers = np.unique(words, return_inverse=True)
    if words.dtype.kind == "U" and len(names) and names[0] == "":
        names, numbers = names[1:], numbers - 1
    if not len(names):
        raise UserError("client names no client; leave it out, or fill it in")
    return Owners(numbers.reshape(-1), tuple(map(str, names)))


MOST_CLASSES = 100_000  # a label is stored as one float per class
NUMBER_THEM = "number them 0, 1, ..., for example with np.unique(y, return_inverse=True)[1]"


Labels = dict[str, Array]


def read_labels(
    given: dict[str, Any], classes: int | None
) -> tuple[Labels, int, tuple[str, ...] | None, tuple[str, ...]]:
    """Class numbers from 0 for each array of labels, how many classes, their names, and notes."""
    arrays = {name: _as_words(_array(name, y)) for name, y in given.items()}
    if all(y.ndim == 1 and y.dtype.kind in "US" for y in arrays.values()):
        return _number_names(arrays, classes)
    labels = {name: _labels(name, y) for name, y in arrays.items()}
    parts = list(labels.values())
    if classes is None and _counts_from_one(parts):
        highest = int(max(part.max(initial=0) for part in parts))
        names = tuple(map(str, range(1, highest + 1)))
        warn_user(f"labels go from 1 to {highest}: they are taken as classes 0 to {highest - 1}")
        return {name: y - 1 for name, y in labels.items()}, max(highest, 2), names, ()
    return labels, _count_classes(parts, classes), None, ()


def _as_words(y: Array) -> Array:
    """Strings that came as Python objects, as pandas has them, are strings."""
    words = y.dtype.kind == "O" and y.ndim == 1 and all(isinstance(word, str) for word in y)
    return y.astype(str) if words else y


def _counts_from_one(parts: list[Array]) -> bool:
    """Labels 1, 2, ..., C, and all of them."""
    seen = np.unique(np.concatenate(parts))
    return len(seen) > 1 and bool(seen[0] == 1) and bool(seen[-1] == len(seen))


def _number_names(
    arrays: Labels, classes: int | None
) -> tuple[Labels, int, tuple[str, ...], tuple[str, ...]]:
    words = {name: y.astype(str) for name, y in arrays.items()}
    names = tuple(map(str, np.unique(np.concatenate(list(words.values())))))
    if "" in names:
        raise UserError("some labels are empty; leave these samples out, or give them as public")
    if len(names) < 2 or len(names) > MOST_CLASSES or (classes or len(names)) != len(names):
        wanted = "2 or more" if classes is None else classes
        raise UserError(f"y has {count(len(names), 'name')} of classes; there must be {wanted}")
    labels = {name: np.searchsorted(names, y).astype(np.int64) for name, y in words.items()}
    return labels, len(names), names, (describe_classes(names),)


def describe_classes(names: tuple[str, ...]) -> str:
    """ "classes: 0 = benign, 1 = malignant" """
    told = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:SHOWN]))
    return f"classes: {told}{', ...' if len(names) > SHOWN else ''}"


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
    elif len(seen) < highest:
        gaps = np.setdiff1d(np.arange(highest), seen)
        few = ", ".join(map(str, gaps[:3])) + (", ..." if len(gaps) > 3 else "")
        warn_user(
            f"{len(gaps)} of {highest} classes never occur in y ({few}); if they do not exist, "
            f"{NUMBER_THEM}, else give classes={highest}"
        )


EITHER = "numbers [S, features] or images [S, H, W(, channels)]"
SHAPES = {
    SERIES: (3, "numbers [S, steps, features]"),
    TABLE: (2, "numbers [S, features]"),
    TOKENS: (2, "whole numbers [S, tokens]"),
    IMAGES: (4, "images [S, H, W(, channels)]"),
}


def read_inputs(name: str, x: Any, kind: str | None = None) -> Array:
    x = _array(name, x)
    if x.ndim and not len(x):
        raise UserError(f"{name} is empty; give it at least one sample, or leave it out")
    if x.ndim == 3 and kind != SERIES:
        x = x[:, None]
    if (
        x.ndim == 4
        and x.shape[-1] <= 4
        and (x.shape[1] > 4 or (x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3)))
    ):
        x = np.moveaxis(x, -1, 1)
    axes, wanted = SHAPES.get(kind or "", (x.ndim if x.ndim in (2, 4) else 0, EITHER))
    if x.ndim != axes or x.dtype.kind not in "buif":
        raise UserError(f"{name} must be {wanted}, not {x.dtype} {x.shape}")
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
