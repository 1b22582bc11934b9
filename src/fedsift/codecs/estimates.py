"""Real tables as bytes: a device's estimate of mean soft labels, which may leave the simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsift.codecs import wire
from fedsift.codecs.wire import WireError
from fedsift.types import Array, UserError

LARGEST = 16.0  # estimates stay near [0, 1]; whatever is far from it is an attack or a defect


@dataclass(frozen=True)
class EstimateCodec:
    """[rows, C] floats of 4 or 2 bytes; both ends know the size."""

    id: int
    dtype: str

    def encode(self, table: Array, round: int) -> bytes:
        if not np.isfinite(table).all():
            raise UserError(
                "estimates are not finite: training diverged; lower the learning rate (local.lr)"
            )
        return wire.seal(wire.ESTIMATES, self.id, round, table.astype(self.dtype).tobytes())

    def decode(self, message: bytes, round: int, rows: int, classes: int) -> Array:
        size = rows * classes * np.dtype(self.dtype).itemsize
        payload = wire.unseal(message, wire.ESTIMATES, self.id, round, size)
        wire.verify(message)
        if len(payload) != size:
            raise WireError(f"{len(payload)} bytes of estimates instead of {size}")
        with np.errstate(invalid="ignore"):  # hostile tables may hold signalling nans
            table = np.frombuffer(payload, self.dtype).reshape(rows, classes).astype(np.float64)
            if not (np.abs(table) <= LARGEST).all():
                raise WireError("estimates that are not finite or far out of range")
        return table

    def size(self, rows: int, classes: int) -> int:
        return wire.HEADER_BYTES + rows * classes * np.dtype(self.dtype).itemsize


ESTIMATE_CODECS = {"float32": EstimateCodec(1, "<f4"), "float16": EstimateCodec(2, "<f2")}
