"""STL-10's binary files: images by columns, labels from 1 to 10, and 100,000 unlabelled images."""

from __future__ import annotations

import numpy as np

from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError

_PIXELS = 3 * 96 * 96


def stl10(folder: Folder) -> dict[str, Array]:
    x, y = _images(folder, "train_X.bin"), _labels(folder, "train_y.bin")
    x_test, y_test = _images(folder, "test_X.bin"), _labels(folder, "test_y.bin")
    return {
        "x": x,
        "y": y,
        "x_test": x_test,
        "y_test": y_test,
        "x_public": _images(folder, "unlabeled_X.bin"),
    }


def _images(folder: Folder, name: str) -> Array:
    content = np.frombuffer(folder.read(name), np.uint8)
    if not len(content) or len(content) % _PIXELS:
        raise UserError(
            f"{name} has {len(content):,} bytes, which is no whole number of images of {_PIXELS:,}"
        )
    return np.ascontiguousarray(content.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2))


def _labels(folder: Folder, name: str) -> Array:
    labels = np.frombuffer(folder.read(name), np.uint8)
    if not len(labels) or labels.min() < 1 or labels.max() > 10:
        raise UserError(f"{name} has labels outside 1 to 10")
    return labels - 1
