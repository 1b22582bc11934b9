"""SVHN's .mat files: MATLAB's format 5; only arrays of numbers are needed, plain or compressed."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from fedsift.data.formats.folder import Folder
from fedsift.types import Array, UserError

_HEADER, _LITTLE_ENDIAN_5 = 128, b"\x00\x01IM"
_INT32, _UINT32, _MATRIX, _COMPRESSED = 5, 6, 14, 15
_TYPES = {
    1: "i1",
    2: "u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}
_NUMERIC_CLASSES, _COMPLEX = range(6, 16), 0x08
_MOST_AXES = 8

Element = tuple[int, memoryview]  # a type and its bytes


def svhn(folder: Folder) -> dict[str, Array]:
    x, y = _digits(folder, "train_32x32.mat")
    x_test, y_test = _digits(folder, "test_32x32.mat")
    return {"x": x, "y": y, "x_test": x_test, "y_test": y_test}


def _digits(folder: Folder, name: str) -> tuple[Array, Array]:
    """Images X [32, 32, 3, S] and labels y [S, 1], in which 10 stands for the digit 0."""
    found = variables(folder.read(name), name, folder.limit)
    x, y = found.get("X"), found.get("y")
    if (
        x is None
        or y is None
        or x.dtype != np.uint8
        or x.shape[:3] != (32, 32, 3)
        or y.size != x.shape[-1]
    ):
        raise UserError(f"{name} needs X, 32 x 32 x 3 x S bytes, and y with S labels")
    if not np.isin(y, np.arange(1, 11)).all():
        raise UserError(f"{name} has labels outside 1 to 10")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), (y.ravel() % 10).astype(np.uint8)


def variables(content: bytes, name: str, limit: int) -> dict[str, Array]:
    """The arrays in a file, by name; nothing in it may unpack to more than `limit` bytes."""
    try:
        if len(content) < _HEADER or content[_HEADER - 4 : _HEADER] != _LITTLE_ENDIAN_5:
            raise ValueError("it is not a MATLAB 5 file")
        return dict(
            _matrix(_decompress(element, limit))
            for element in _elements(memoryview(content)[_HEADER:])
        )
    except (ValueError, struct.error, zlib.error) as error:
        raise UserError(f"cannot read {name}: {error}") from None


def _elements(data: memoryview) -> Iterator[Element]:
    """Types and their bytes, one after another; up to four bytes may stand in the tag itself."""
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        start, after = position + 8, position + 8 + size
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            start, after = position + 4, position + 8
        if start + size > min(after, len(data)):
            raise ValueError(f"an element of {size:,} bytes does not fit where it stands")
        yield kind, data[start : start + size]
        position = after if kind == _COMPRESSED else (after + 7) // 8 * 8


def _decompress(element: Element, limit: int) -> Element:
    kind, packed = element
    if kind != _COMPRESSED:
        return element
    stream = zlib.decompressobj()
    content = stream.decompress(packed, limit + 1024)
    if not stream.eof:
        raise ValueError("a compressed element is cut short or far too large")
    inside = list(_elements(memoryview(content)))
    if len(inside) != 1:
        raise ValueError("a compressed element holds more than one thing, or nothing")
    return inside[0]


def _matrix(element: Element) -> tuple[str, Array]:
    kind, data = element
    parts = list(_elements(data)) if kind == _MATRIX else []
    if len(parts) != 4 or parts[0][0] != _UINT32 or len(parts[0][1]) != 8 or parts[1][0] != _INT32:
        raise ValueError("it holds something that is not a plain array")
    (_, flags), (_, sizes), (_, label), (stored, values) = parts
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
    if flags[0] not in _NUMERIC_CLASSES or flags[1] & _COMPLEX or stored not in _TYPES:
        raise ValueError("it holds an array that is not of real numbers")
    dtype = np.dtype(_TYPES[stored])
    if (
        not 0 < len(shape) <= _MOST_AXES
        or min(shape) < 0
        or math.prod(shape) * dtype.itemsize != len(values)
    ):
        raise ValueError(f"an array of shape {shape} has {len(values):,} bytes")
    return bytes(label).decode("latin-1"), np.frombuffer(values, dtype).reshape(shape, order="F")
