"""Soft labels as bytes: which samples (nothing if both ends can derive it, else a set code) and their values."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsift import seeding
from fedsift.codecs import indexes, wire
from fedsift.codecs.wire import WireError
from fedsift.types import Array, Link, Mistake, SoftLabels

_PREFIX = struct.Struct("<BI")  # how the indexes are given, how many rows
_LENGTH = struct.Struct("<I")  # bytes of the set code, when there is one
_CODED = 255  # otherwise: the position in `link.drawn_from` of the seed that gives the indexes
OVERHEAD_BYTES = wire.HEADER_BYTES + _PREFIX.size


class Values(Protocol):
    """How probability rows become bytes. `id` is the codec number in the header."""

    @property
    def id(self) -> int: ...

    def pack(self, probs: Array) -> bytes: ...

    def unpack(self, code: bytes, rows: int, classes: int) -> Array: ...

    def max_bytes(self, rows: int, classes: int) -> int: ...


@dataclass(frozen=True)
class Float:
    """Rows as little-endian floats of 4 or 2 bytes."""

    id: int
    dtype: str

    def pack(self, probs: Array) -> bytes:
        return probs.astype(self.dtype).tobytes()

    def unpack(self, code: bytes, rows: int, classes: int) -> Array:
        if len(code) != self.max_bytes(rows, classes):
            raise WireError(f"{len(code)} bytes of soft labels instead of {self.max_bytes(rows, classes)}")
        probs = np.frombuffer(code, self.dtype).reshape(rows, classes).astype(np.float32)
        with np.errstate(invalid="ignore"):  # hostile rows may hold inf - inf
            total = probs.sum(1, keepdims=True, dtype=np.float64)
        if not (np.isfinite(probs).all() and (probs >= 0).all() and (np.abs(total - 1) < 0.01).all()):
            raise WireError("soft labels that are not probabilities")
        return probs if self.dtype == "<f4" else (probs / total).astype(np.float32)

    def max_bytes(self, rows: int, classes: int) -> int:
        return rows * classes * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class SoftLabelCodec:
    """Indexes + values; `encode` and `decode` are the two halves of one agreement."""

    values: Values

    def encode(self, labels: SoftLabels, link: Link) -> bytes:
        if not np.isfinite(labels.probs).all():
            raise Mistake("soft labels are not finite: training diverged; lower the learning rate (local.lr)")
        mode = _find_seed(labels.index, link)
        prefix = _PREFIX.pack(mode, len(labels))
        if mode == _CODED:
            code = indexes.encode(labels.index, link.samples)
            prefix += _LENGTH.pack(len(code)) + code
        payload = prefix + self.values.pack(labels.probs)
        return wire.seal(wire.SOFT_LABELS, self.values.id, link.round, payload, _implied(labels.index, link))

    def decode(self, message: bytes, link: Link) -> SoftLabels:
        limit = _PREFIX.size + _LENGTH.size + link.samples // 8 + 64 + self.values.max_bytes(link.samples, link.classes)
        payload = wire.unseal(message, wire.SOFT_LABELS, self.values.id, link.round, limit)
        if len(payload) < _PREFIX.size:
            raise WireError("truncated message: no room for the number of rows")
        mode, rows = _PREFIX.unpack_from(payload)
        if rows > link.samples:
            raise WireError(f"{rows} soft labels for a public set of {link.samples}")
        index, rest = self._indexes(payload[_PREFIX.size :], mode, rows, link)
        wire.verify(message, _implied(index, link))
        return SoftLabels(index, self.values.unpack(rest, rows, link.classes))

    def _indexes(self, rest: bytes, mode: int, rows: int, link: Link) -> tuple[Array, bytes]:
        if mode < len(link.drawn_from):
            return seeding.subset(seeding.rng(*link.drawn_from[mode]), link.samples, rows), rest
        if mode != _CODED:
            raise WireError(f"indexes given in unknown way {mode}")
        if len(rest) < _LENGTH.size:
            raise WireError("truncated message: no room for the indexes")
        end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        if len(rest) < end:
            raise WireError("truncated message: the indexes are cut short")
        return indexes.decode(rest[_LENGTH.size : end], link.samples, rows), rest[end:]


def _find_seed(index: Array, link: Link) -> int:
    """Which seed both ends know draws exactly these indexes, if any."""
    for position, names in enumerate(link.drawn_from):
        if np.array_equal(index, seeding.subset(seeding.rng(*names), link.samples, len(index))):
            return position
    return _CODED


def _implied(index: Array, link: Link) -> bytes:
    """What both ends must agree on without its being sent: the size of the public set, the classes, the indexes."""
    return struct.pack("<II", link.samples, link.classes) + index.astype("<u4").tobytes()
