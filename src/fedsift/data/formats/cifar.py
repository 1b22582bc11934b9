"""CIFAR-10 and CIFAR-100: python (pickles) and binary versions; CIFAR-10 as pictures of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedsift.data import images
from fedsift.data.formats import pickles
from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError

_PIXELS = 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

Batch = tuple[Array, Array]  # images [S, 3, 32, 32] and labels [S]


def ten(folder: Folder) -> dict[str, Array]:
    if folder.find("data_batch_1.bin"):
        return _read(
            partial(_read_binary, labels=1),
            folder,
            [f"{name}.bin" for name in _BATCHES],
            "test_batch.bin",
        )
    return _read(partial(_read_pickle, labels="labels"), folder, _BATCHES, "test_batch")


def hundred(folder: Folder) -> dict[str, Array]:
    """The hundred fine classes."""
    if folder.find("train.bin"):
        return _read(partial(_read_binary, labels=2), folder, ["train.bin"], "test.bin")
    return _read(partial(_read_pickle, labels="fine_labels"), folder, ["train"], "test")


def ten_as_pictures(folder: Folder) -> dict[str, Array]:
    """Pictures with an image in every row of 1,024 pixels; labels as JSON (sic: "lables")."""
    x = np.concatenate([_read_picture(folder, f"{name}.png") for name in _BATCHES])
    y, y_test = (_json_labels(folder, f"{name}_lables.json") for name in ("train", "test"))
    return {"x": x, "y": y, "x_test": _read_picture(folder, "test_batch.png"), "y_test": y_test}


def _read(
    batch: Callable[[Folder, str], Batch], folder: Folder, train: Sequence[str], test: str
) -> dict[str, Array]:
    x, y = (
        np.concatenate(parts)
        for parts in zip(*(batch(folder, name) for name in train), strict=True)
    )
    x_test, y_test = batch(folder, test)
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


def _read_pickle(folder: Folder, name: str, labels: str) -> Batch:
    found = pickles.read(folder.read(name), name)
    x, y = found.get("data"), found.get(labels)
    if (
        not isinstance(x, np.ndarray)
        or x.ndim != 2
        or x.shape[1] != _PIXELS
        or not isinstance(y, list)
    ):
        raise UserError(
            f"{name} is not a CIFAR batch: it needs data [S, {_PIXELS}] and a list of {labels}"
        )
    return x.reshape(-1, 3, 32, 32), _label_bytes(y, name)


def _read_binary(folder: Folder, name: str, labels: int) -> Batch:
    """Records of one or two labels (the last is the finer one) and 3,072 bytes."""
    content = np.frombuffer(folder.read(name), np.uint8)
    if not len(content) or len(content) % (labels + _PIXELS):
        raise UserError(
            f"{name} has {len(content):,} bytes, which is no whole number of records of "
            f"{labels + _PIXELS}"
        )
    records = content.reshape(-1, labels + _PIXELS)
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1]


def _read_picture(folder: Folder, name: str) -> Array:
    pixels = images.read_pixels(folder.locate(name), "PNG")
    if pixels.shape[1:] != (1024, 3):
        raise UserError(
            f"{name} must be a colour picture 1,024 pixels wide; it is {pixels.shape[1]} wide"
        )
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def _json_labels(folder: Folder, name: str) -> Array:
    try:
        return _label_bytes(json.loads(folder.read(name)), name)
    except (ValueError, RecursionError):
        raise UserError(f"{name} is not a list of labels") from None


def _label_bytes(labels: Any, name: str) -> Array:
    if not isinstance(labels, list) or not all(
        type(label) is int and 0 <= label < 256 for label in labels
    ):
        raise UserError(f"{name} has labels that are not class numbers")
    return np.array(labels, np.uint8)
