"""Weights as whole numbers of ticks away from weights that both ends have.

A tick is 2^-24 of a weight and 1 of a counter. A running variance moves by float32 numbers: its
ticks are differences of the bit patterns. They ascend with the number, so a variance keeps its
relative precision and cannot become negative.

Whole numbers add up exactly. So the difference between any two versions of a model is itself an
update, and whoever applies it has the same weights, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fedsift.codecs import entropy
from fedsift.codecs.wire import WireError
from fedsift.types import Array, UserError, Weights

Ticks = dict[str, Array]  # int64 [numel] by tensor, in the order of the names

TICK = 2.0**-24
FARTHEST = 2**52  # ticks: up to here float64 counts them one by one
FEW = 256  # entries: smaller tensors share one code, since every code has an overhead
PIECE = 2048  # entries that have one step: larger tensors may be refined piece by piece
_DIGIT = 6  # bits: numbers beyond a byte are split into digits of so many
_NARROW = 127  # the largest number that is coded in one piece
_SPLIT = 255
_POWER = 48  # 127 x 2^48 is beyond the farthest
_INFINITE = 0x7F800000  # the bit pattern of the first float32 that is not finite


def move(start: Weights, ticks: Ticks) -> Weights:
    """The weights so many ticks away from `start`."""
    moved = {name: _move(name, value, ticks[name]) for name, value in start.items()}
    for name, value in moved.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise WireError(f"an update leads to weights {name!r} that are not finite")
    return moved


def measure(start: Weights, weights: Weights) -> dict[str, Array]:
    """How many ticks the weights are away from `start`: not whole numbers yet. float64 [numel]"""
    found = {name: _measure(name, start[name], weights[name]) for name in sorted(start)}
    for name, value in found.items():
        if not (np.abs(value) <= FARTHEST).all():
            raise UserError(
                f"weights {name!r} are too far from the first ones for updates; use float32"
            )
    return found


def nothing(like: Weights) -> Ticks:
    return {name: np.zeros(like[name].numel(), np.int64) for name in sorted(like)}


def add(one: Ticks, other: Ticks) -> Ticks:
    return {name: one[name] + other[name] for name in one}


def subtract(one: Ticks, other: Ticks) -> Ticks:
    return {name: one[name] - other[name] for name in one}


def is_variance(name: str, value: torch.Tensor) -> bool:
    return value.is_floating_point() and name.rpartition(".")[2] == "running_var"


def _move(name: str, value: torch.Tensor, ticks: Array) -> torch.Tensor:
    by = torch.from_numpy(ticks).reshape(value.shape)
    if not value.is_floating_point():
        return (value + by).to(value.dtype)
    if not is_variance(name, value):
        return (value.double() + by * TICK).to(value.dtype)
    patterns = _patterns(value) + by
    if not ((patterns >= 0) & (patterns < _INFINITE)).all():
        raise WireError(f"an update leads to a variance {name!r} below 0 or not finite")
    return patterns.to(torch.int32).view(torch.float32).to(value.dtype)


def _measure(name: str, start: torch.Tensor, value: torch.Tensor) -> Array:
    if is_variance(name, start):
        ticks = (_patterns(value) - _patterns(start)).double()
    elif start.is_floating_point():
        ticks = (value.double() - start.double()) / TICK
    else:
        ticks = (value.long() - start.long()).double()
    return ticks.numpy().ravel()


def _patterns(value: torch.Tensor) -> torch.Tensor:
    return value.float().contiguous().view(torch.int32).long()


# --- as bytes ---


def encode(ticks: Ticks, like: Weights) -> bytes:
    """Each piece's largest common power of two, then the numbers, entropy-coded."""
    if not any(value.any() for value in ticks.values()):
        return b"\0"
    cut = {piece: ticks[piece.name][piece.part] for piece in pieces(like)}
    shifts = {piece: _common_zeros(numbers) for piece, numbers in cut.items()}
    parts = [b"\1", bytes(shifts.values())]
    for group in _groups(like):
        numbers = [cut[piece] >> shifts[piece] for piece in group]
        parts.append(_encode_numbers(np.concatenate(numbers)))
    return b"".join(parts)


def decode(code: bytes, like: Weights) -> Ticks:
    """The inverse, bounded by the size of `like`."""
    ticks = nothing(like)
    if code == b"\0":
        return ticks
    known = pieces(like)
    if len(code) > max_bytes(like) or code[:1] != b"\1" or len(code) <= len(known):
        raise WireError(f"{len(code)} bytes are no update of this model")
    at = 1 + len(known)
    shifts = dict(zip(known, code[1:at], strict=True))
    for group in _groups(like):
        sizes = [piece.size for piece in group]
        numbers, at = _decode_numbers(code, at, sum(sizes))
        for piece, found in zip(group, np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
            ticks[piece.name][piece.part] = _shift(found, shifts[piece])
    if at != len(code):
        raise WireError(f"{len(code) - at} bytes after the last tensor of an update")
    return ticks


def max_bytes(like: Weights) -> int:
    """Of any update, with as many digits as the farthest has."""
    sizes = [sum(piece.size for piece in group) for group in _groups(like)]
    digits = sum(5 + entropy.max_bytes(size, 2**_DIGIT) for size in sizes) * (_POWER // _DIGIT)
    highest = sum(5 + entropy.max_bytes(size, 255) for size in sizes)
    return 1 + len(pieces(like)) + digits + highest


class Piece(NamedTuple):
    """Neighbouring entries of one tensor that have a step of their own."""

    name: str
    first: int
    size: int

    @property
    def part(self) -> slice:
        return slice(self.first, self.first + self.size)


def pieces(like: Weights) -> list[Piece]:
    """All entries of all tensors, by name and place."""
    return [
        Piece(name, first, min(PIECE, like[name].numel() - first))
        for name in sorted(like)
        for first in range(0, like[name].numel(), PIECE)
    ]


def _groups(like: Weights) -> list[list[Piece]]:
    """Pieces that are coded together: large tensors each alone, then small ones, counters."""
    groups: dict[str, list[Piece]] = {}
    for piece in pieces(like):
        value = like[piece.name]
        kind = f"large {piece.name}" if value.numel() >= FEW else "small"
        groups.setdefault(kind if value.is_floating_point() else "counters", []).append(piece)
    return [groups[kind] for kind in sorted(groups)]


def _common_zeros(numbers: Array) -> int:
    """By how many bits all of them can be shifted without losing any."""
    joint = int(np.bitwise_or.reduce(numbers)) if numbers.size else 0
    return (joint & -joint).bit_length() - 1 if joint else 0


def _shift(numbers: Array, by: int) -> Array:
    if by > 62 or (np.abs(numbers) > FARTHEST >> min(by, 62)).any():
        raise WireError("an update that goes too far")
    return numbers << by


def _encode_numbers(numbers: Array) -> bytes:
    """A byte with the largest of them, and a code; digits of six bits first where it is large."""
    most = int(np.abs(numbers).max(initial=0))
    if most <= _NARROW:
        return bytes([most]) + (_encode_piece(numbers + most, 2 * most + 1) if most else b"")
    low, high = numbers & (2**_DIGIT - 1), numbers >> _DIGIT
    return bytes([_SPLIT]) + _encode_piece(low, 2**_DIGIT) + _encode_numbers(high)


def _encode_piece(symbols: Array, base: int) -> bytes:
    code = entropy.encode(symbols, base)
    return len(code).to_bytes(4, "little") + code


def _decode_numbers(code: bytes, at: int, count: int) -> tuple[Array, int]:
    numbers, power = np.zeros(count, np.int64), 0
    while at < len(code) and code[at] == _SPLIT and power < _POWER:
        low, at = _decode_piece(code, at + 1, count, 2**_DIGIT)
        numbers, power = numbers + (low << power), power + _DIGIT
    if at >= len(code) or code[at] > _NARROW:
        raise WireError("an update is cut short or goes too far")
    most, at = code[at], at + 1
    if most:
        high, at = _decode_piece(code, at, count, 2 * most + 1)
        numbers = numbers + ((high - most) << power)
    return numbers, at


def _decode_piece(code: bytes, at: int, count: int, base: int) -> tuple[Array, int]:
    start = at + 4
    end = start + int.from_bytes(code[at:start], "little")
    if len(code) < max(start, end):
        raise WireError("an update is cut short")
    return entropy.decode(code[start:end], count, base), end
