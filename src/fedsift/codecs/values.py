"""Probability rows as bytes: floats, b-bit simplex points, hard labels, k largest, changes only."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsift.codecs import entropy, indexes
from fedsift.codecs.wire import WireError
from fedsift.types import Array, UserError

_COUNT = struct.Struct("<II")  # changed rows, bytes of their set code


class Values(Protocol):
    """`id`: codec number in the header. `known` [n, C]: rows the receiver has (nan: none)."""

    @property
    def id(self) -> int: ...

    def pack(self, probs: Array, known: Array | None) -> bytes: ...

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None) -> Array: ...

    def max_bytes(self, rows: int, classes: int) -> int: ...


@dataclass(frozen=True)
class Float:
    """Rows as little-endian floats of 4 or 2 bytes."""

    id: int
    dtype: str

    def pack(self, probs: Array, known: Array | None = None) -> bytes:
        return probs.astype(self.dtype).tobytes()

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None = None) -> Array:
        if len(code) != self.max_bytes(rows, classes):
            raise WireError(
                f"{len(code)} bytes of soft labels instead of {self.max_bytes(rows, classes)}"
            )
        probs = np.frombuffer(code, self.dtype).reshape(rows, classes).astype(np.float32)
        with np.errstate(invalid="ignore"):  # hostile rows may hold inf - inf
            total = probs.sum(1, keepdims=True, dtype=np.float64)
        if not (
            np.isfinite(probs).all() and (probs >= 0).all() and (np.abs(total - 1) < 0.01).all()
        ):
            raise WireError("soft labels that are not probabilities")
        return probs if self.dtype == "<f4" else (probs / total).astype(np.float32)

    def max_bytes(self, rows: int, classes: int) -> int:
        return rows * classes * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Hard:
    """The likeliest class alone, log2 C bits or less; it arrives as a one-hot row."""

    id: int = 3

    def pack(self, probs: Array, known: Array | None = None) -> bytes:
        return entropy.encode(probs.argmax(1), probs.shape[1])

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None = None) -> Array:
        return np.eye(classes, dtype=np.float32)[entropy.decode(code, rows, classes)]

    def max_bytes(self, rows: int, classes: int) -> int:
        return entropy.max_bytes(rows, classes)


@dataclass(frozen=True)
class Quantized:
    """The nearest point of the simplex grid {0, 1/L, ..., 1}, L = 2^bits - 1, entries summing to 1
    (CFD).

    One bit is the hard label. The last entry of a row follows from the others and is not sent.
    """

    bits: int

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= 8:
            raise UserError(f"quantized takes 1 to 8 bits, not {self.bits}")

    @property
    def id(self) -> int:
        return 16 + self.bits

    def pack(self, probs: Array, known: Array | None = None) -> bytes:
        if self.bits == 1:
            return Hard().pack(probs)
        return entropy.encode(on_grid(probs, 2**self.bits - 1)[:, :-1].ravel(), 2**self.bits)

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None = None) -> Array:
        if self.bits == 1:
            return Hard().unpack(code, rows, classes)
        levels = 2**self.bits - 1
        most = entropy.decode(code, rows * (classes - 1), 2**self.bits).reshape(rows, classes - 1)
        last = levels - most.sum(1, keepdims=True)
        if (last < 0).any():
            raise WireError("quantised soft labels that sum to more than 1")
        return (np.concatenate([most, last], 1) / levels).astype(np.float32)

    def max_bytes(self, rows: int, classes: int) -> int:
        return (
            entropy.max_bytes(rows, classes)
            if self.bits == 1
            else entropy.max_bytes(rows * (classes - 1), 2**self.bits)
        )


def on_grid(probs: Array, levels: int) -> Array:
    """Rows as whole numbers with sum `levels`, largest remainder; no sample loop. [n, C] int64."""
    exact = probs.astype(np.float64) * (levels / probs.sum(1, keepdims=True))
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(exact - whole, 9), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return whole + (rank < (levels - whole.sum(1))[:, None])


@dataclass(frozen=True)
class TopK:
    """A row's k largest probabilities as float16 with classes; the rest spread over the others."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 1 <= self.k <= 63:
            raise UserError(f"topk takes 1 to 63 classes, not {self.k}")

    @property
    def id(self) -> int:
        return 64 + self.k

    def pack(self, probs: Array, known: Array | None = None) -> bytes:
        k = min(self.k, probs.shape[1])
        classes = np.sort(np.argsort(-probs, axis=1, kind="stable")[:, :k], axis=1)
        values = np.take_along_axis(probs, classes, 1).astype("<f2")
        return classes.astype("<u2").tobytes() + values.tobytes()

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None = None) -> Array:
        if len(code) != self.max_bytes(rows, classes):
            raise WireError(
                f"{len(code)} bytes of soft labels instead of {self.max_bytes(rows, classes)}"
            )
        k = min(self.k, classes)
        names = np.frombuffer(code[: 2 * rows * k], "<u2").reshape(rows, k).astype(np.int64)
        values = np.frombuffer(code[2 * rows * k :], "<f2").reshape(rows, k).astype(np.float64)
        if (names >= classes).any() or (np.diff(names, axis=1) <= 0).any():
            raise WireError("classes of the largest probabilities that are not classes")
        with np.errstate(invalid="ignore"):
            total = values.sum(1, keepdims=True)
        if not (
            np.isfinite(values).all()
            and (values >= 0).all()
            and (total <= 1.01).all()
            and (total > 0).all()
        ):
            raise WireError("soft labels that are not probabilities")
        probs = np.repeat(np.maximum(1 - total, 0) / max(1, classes - k), classes, axis=1)
        np.put_along_axis(probs, names, values, 1)
        return (probs / probs.sum(1, keepdims=True)).astype(np.float32)

    def max_bytes(self, rows: int, classes: int) -> int:
        return 4 * rows * min(self.k, classes)


@dataclass(frozen=True)
class Delta:
    """Only rows changed since the receiver last got them (CFD): a set code and their inner code."""

    inner: Values

    @property
    def id(self) -> int:
        return 128 + self.inner.id

    def pack(self, probs: Array, known: Array | None) -> bytes:
        rows, classes = probs.shape
        arriving = self.inner.unpack(self.inner.pack(probs, None), rows, classes, None)
        changed = np.flatnonzero(
            (arriving != _or_nothing(known, rows, classes)).any(1)
        )  # nan differs from everything
        code = indexes.encode(changed, len(probs))
        return _COUNT.pack(len(changed), len(code)) + code + self.inner.pack(probs[changed], None)

    def unpack(self, code: bytes, rows: int, classes: int, known: Array | None) -> Array:
        if len(code) < _COUNT.size:
            raise WireError("truncated message: no room for the number of changes")
        changes, length = _COUNT.unpack_from(code)
        end = _COUNT.size + length
        if changes > rows or len(code) < end:
            raise WireError(f"{changes} changes to {rows} rows, or their positions are cut short")
        changed = indexes.decode(code[_COUNT.size : end], rows, changes)
        probs = _or_nothing(known, rows, classes).copy()
        probs[changed] = self.inner.unpack(code[end:], changes, classes, None)
        if np.isnan(probs).any():
            raise WireError("a row is marked as unchanged that was never sent")
        return probs

    def max_bytes(self, rows: int, classes: int) -> int:
        return _COUNT.size + rows // 8 + 64 + self.inner.max_bytes(rows, classes)


def _or_nothing(known: Array | None, rows: int, classes: int) -> Array:
    return np.full((rows, classes), np.nan, np.float32) if known is None else known
