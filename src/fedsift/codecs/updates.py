"""Quantised weight updates (FedPAQ): w - base crosses, each tensor as norm and unbiased levels."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch

from fedsift import seeding
from fedsift.codecs import entropy, wire
from fedsift.codecs.weights import check_variance, is_statistic
from fedsift.codecs.wire import WireError
from fedsift.types import Array, UserError, Weights

_SAMPLES, _TENSOR = struct.Struct("<I"), struct.Struct("<fI")  # norm, bytes of the levels


@dataclass(frozen=True)
class Qsgd:
    """QSGD: each weight of an update as one of 2s + 1 levels, rounded at random; unbiased.

    bits: of a level with its sign, 2 to 8, before entropy coding

    Per tensor Q(x) = |x| sign(x) level / s, s = 2^(bits - 1) - 1, and E[Q(x)] = x.
    Running statistics and integer buffers are sent as they are: a variance must not become negative
    by chance.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 8:
            raise UserError(f"qsgd takes 2 to 8 bits, not {self.bits}")

    @property
    def id(self) -> int:
        return 16 + self.bits

    @property
    def levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def encode(
        self, state: Weights, round: int, samples: int, base: Weights, key: seeding.Names
    ) -> bytes:
        generator = seeding.rng(*key, "quantise")
        parts = [_SAMPLES.pack(samples)]
        for name, value in sorted(state.items()):
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise UserError(
                    f"weights {name!r} are not finite: training diverged; lower the learning "
                    "rate (local.lr)"
                )
            if _is_exact(name, value):
                parts.append(value.contiguous().numpy().tobytes())
                continue
            update = (value.double() - base[name].double()).numpy().ravel()
            norm, levels = quantise(update, self.levels, generator)
            if not np.isfinite(norm):
                raise UserError(
                    f"weights {name!r} have moved too far: training diverged; lower the "
                    "learning rate (local.lr)"
                )
            code = entropy.encode(levels + self.levels, 2 * self.levels + 1)
            parts += [_TENSOR.pack(norm, len(code)), code]
        return wire.seal(wire.WEIGHTS, self.id, round, b"".join(parts), implied(base))

    def decode(self, message: bytes, round: int, base: Weights) -> tuple[Weights, int]:
        """The state this update leads to from `base`, and the number of samples behind it."""
        limit = _SAMPLES.size + sum(self._max_bytes(name, value) for name, value in base.items())
        payload = wire.unseal(message, wire.WEIGHTS, self.id, round, limit)
        wire.verify(message, implied(base))
        if len(payload) < _SAMPLES.size:
            raise WireError("truncated message: no room for the number of samples")
        state, at = {}, _SAMPLES.size
        for name, value in sorted(base.items()):
            state[name], at = self._read(payload, at, name, value)
        if at != len(payload):
            raise WireError(f"{len(payload) - at} bytes after the last tensor")
        return {name: state[name] for name in base}, _SAMPLES.unpack_from(payload)[0]

    def _read(
        self, payload: bytes, at: int, name: str, value: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        if _is_exact(name, value):
            end = at + value.numel() * value.element_size()
            if len(payload) < end:
                raise WireError(f"truncated message: {name!r} is cut short")
            found = (
                torch.frombuffer(bytearray(payload[at:end]), dtype=value.dtype)
                if end > at
                else value.ravel()
            )
            return self._check_finite(name, found.reshape(value.shape)), end
        if len(payload) < at + _TENSOR.size:
            raise WireError(f"truncated message: {name!r} is cut short")
        norm, length = _TENSOR.unpack_from(payload, at)
        at, end = at + _TENSOR.size, at + _TENSOR.size + length
        if len(payload) < end or not 0 <= norm < float("inf"):
            raise WireError(f"{name!r} is cut short or has an impossible norm")
        levels = entropy.decode(payload[at:end], value.numel(), 2 * self.levels + 1) - self.levels
        update = torch.from_numpy(levels * (norm / self.levels)).reshape(value.shape)
        return self._check_finite(name, (value.double() + update).to(value.dtype)), end

    def _check_finite(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise WireError(f"weights {name!r} are not finite")
        check_variance(name, value)
        return value

    def _max_bytes(self, name: str, value: torch.Tensor) -> int:
        if _is_exact(name, value):
            return value.numel() * value.element_size()
        return _TENSOR.size + entropy.max_bytes(value.numel(), 2 * self.levels + 1)


def implied(base: Weights) -> bytes:
    """An update is valid only for the weights it was made against: the checksum covers them."""
    shapes = repr([(name, tuple(value.shape)) for name, value in sorted(base.items())]).encode()
    return shapes + b"".join(base[name].contiguous().numpy().tobytes() for name in sorted(base))


def quantise(x: Array, levels: int, generator: np.random.Generator) -> tuple[float, Array]:
    """Norm and, per entry, sign times a level 0 .. levels; P(round up) is the remainder."""
    with np.errstate(over="ignore"):
        norm = float(np.float32(np.linalg.norm(x)))
    if not 0 < norm < float("inf"):
        return norm, np.zeros(len(x), np.int64)
    exact = np.minimum(np.abs(x) / norm, 1.0) * levels
    level = np.floor(exact) + (generator.random(len(x)) < exact % 1)
    return norm, (np.sign(x) * level).astype(np.int64)


def _is_exact(name: str, value: torch.Tensor) -> bool:
    return not value.is_floating_point() or is_statistic(name)
