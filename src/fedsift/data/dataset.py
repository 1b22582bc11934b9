"""A data set as arrays: samples, class numbers and, where they exist, official parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsift.checks import check_whole, count, describe, warn_user
from fedsift.types import Array, UserError


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
    x, y = read_inputs("x", x), _labels("y", y)
    parts = {"x": (x, y)}
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise UserError(f"test is {describe(test)}; pass test=(x_test, y_test)")
        test = read_inputs("test x", test[0]), _labels("test y", test[1])
        parts["test"] = test
    for name, (inputs, labels) in parts.items():
        if len(inputs) != len(labels):
            raise UserError(f"{name} has {len(inputs)} samples but {len(labels)} labels")
    public = None if public is None else read_inputs("public", public)
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


def read_inputs(name: str, x: Any) -> Array:
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
