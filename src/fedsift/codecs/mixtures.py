"""Mixtures of private samples as bytes (Mix2FLD): float16 values and two labels per mixture."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from fedsift.codecs import wire
from fedsift.codecs.wire import WireError
from fedsift.types import Array

_COUNT = struct.Struct("<I")
CODEC = 1
# Private inputs need not be in the public range, but near it. In widths of that range: as
# `fedsift.data.compare_inputs` has it, which tells a client about its own inputs.
FARTHEST = 10.0  # no value is further outside
MARGIN, SHARE = 1.0, 0.05  # and no more than this share further than that


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Mixtures lam x_a + (1 - lam) x_b: values [n, ...] and the labels a and b of the parts [n]."""

    x: Array
    a: Array
    b: Array


@dataclass(frozen=True)
class MixtureCodec:
    """Both ends know the shape of a sample, the number of classes and the most mixtures."""

    shape: tuple[int, ...]
    classes: int
    most: int
    low: float = -math.inf  # the range of public inputs
    high: float = math.inf

    def encode(self, mixtures: Mixtures, round: int) -> bytes:
        labels = np.stack([mixtures.a, mixtures.b], 1).astype("<u2")
        payload = (
            _COUNT.pack(len(mixtures.x)) + labels.tobytes() + mixtures.x.astype("<f2").tobytes()
        )
        return wire.seal(wire.MIXTURES, CODEC, round, payload)

    def decode(self, message: bytes, round: int) -> Mixtures:
        each = 4 + 2 * math.prod(self.shape)
        payload = wire.unseal(message, wire.MIXTURES, CODEC, round, _COUNT.size + self.most * each)
        wire.verify(message)
        if len(payload) < _COUNT.size:
            raise WireError("truncated message: no room for the number of mixtures")
        (count,) = _COUNT.unpack_from(payload)
        if count > self.most or len(payload) != _COUNT.size + count * each:
            raise WireError(
                f"{len(payload)} bytes do not hold {count} mixtures (at most {self.most})"
            )
        labels = (
            np.frombuffer(payload, "<u2", 2 * count, _COUNT.size).reshape(count, 2).astype(np.int64)
        )
        x = (
            np.frombuffer(payload, "<f2", offset=_COUNT.size + 4 * count)
            .reshape(count, *self.shape)
            .astype(np.float32)
        )
        if (
            (labels >= self.classes).any()
            or (labels[:, 0] == labels[:, 1]).any()
            or not np.isfinite(x).all()
        ):
            raise WireError(
                "mixtures with labels that are not two different classes, or values that are "
                "not finite"
            )
        self._check_range(x)
        return Mixtures(x, labels[:, 0], labels[:, 1])

    def _check_range(self, x: Array) -> None:
        width = (self.high - self.low) or max(1.0, abs(self.high))
        if not x.size or math.isinf(width):
            return
        away = np.maximum(self.low - x, x - self.high) / width
        if away.max() > FARTHEST or (away > MARGIN).mean() > SHARE:
            raise WireError(
                f"mixtures from {x.min():.3g} to {x.max():.3g}, where public inputs go from"
                f" {self.low:.3g} to {self.high:.3g}"
            )
