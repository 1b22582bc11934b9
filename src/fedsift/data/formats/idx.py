"""IDX, the MNIST and Fashion-MNIST format: big-endian header of sizes, then bytes. Plain or .gz."""

from __future__ import annotations

import math
import struct

import numpy as np

from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError


def mnist(folder: Folder) -> dict[str, Array]:
    images = {
        name: _array(folder, f"{file}-images-idx3-ubyte", 3)[:, None]
        for name, file in _PARTS.items()
    }
    labels = {name: _array(folder, f"{file}-labels-idx1-ubyte", 1) for name, file in _PARTS.items()}
    return {
        "x": images["train"],
        "y": labels["train"],
        "x_test": images["test"],
        "y_test": labels["test"],
    }


_PARTS = {"train": "train", "test": "t10k"}


def _array(folder: Folder, name: str, axes: int) -> Array:
    content = folder.read(name)
    start = 4 + 4 * axes
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) < start:
        raise UserError(f"{name} is not an IDX file of bytes in {axes} dimensions")
    sizes = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(sizes):
        raise UserError(
            f"{name} says it has {math.prod(sizes):,} bytes of data, but it has "
            f"{len(content) - start:,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
