"""Weights as whole numbers of ticks away from weights that both ends have.

A tick is 2^-24 of a weight and 1 of a counter. A running variance moves by float32 numbers: its
ticks are differences of the bit patterns. They ascend with the number, so a variance keeps its
relative precision and cannot become negative.

Whole numbers add up exactly. So the difference between any two versions of a model is itself an
update, and whoever applies it has the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
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
    plan = make_plan(like)
    flat = plan.join(ticks)
    if not flat.any():
        return b"\0"
    numbers, shifts = plan.cut_zeros(flat)
    codes = (encode_numbers(numbers[group]) for group in plan.groups)
    return b"".join([b"\1", shifts.astype(np.uint8).tobytes(), *codes])


def decode(code: bytes, like: Weights) -> Ticks:
    """The inverse, bounded by the size of `like`."""
    if code == b"\0":
        return nothing(like)
    plan = make_plan(like)
    known = len(plan.pieces)
    if len(code) > max_bytes(like) or code[:1] != b"\1" or len(code) <= known:
        raise WireError(f"{len(code)} bytes are no update of this model")
    flat, at = np.empty(plan.entries, np.int64), 1 + known
    for group, size in zip(plan.groups, plan.group_sizes, strict=True):
        flat[group], at = _decode_numbers(code, at, size)
    if at != len(code):
        raise WireError(f"{len(code) - at} bytes after the last tensor of an update")
    return plan.split(_shift(flat, np.frombuffer(code[1 : 1 + known], np.uint8), plan))


def max_bytes(like: Weights) -> int:
    """Of any update, with as many digits as the farthest has."""
    plan = make_plan(like)
    sizes = plan.group_sizes
    digits = sum(5 + entropy.max_bytes(size, 2**_DIGIT) for size in sizes) * (_POWER // _DIGIT)
    highest = sum(5 + entropy.max_bytes(size, 255) for size in sizes)
    return 1 + len(plan.pieces) + digits + highest


class Piece(NamedTuple):
    """Neighbouring entries of one tensor that have a step of their own."""

    name: str
    first: int  # in the tensor
    size: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Where the entries of all tensors lie in one flat array, by name and place."""

    names: tuple[str, ...]
    ends: tuple[int, ...]  # of each tensor in the flat array
    pieces: tuple[Piece, ...]
    groups: tuple[slice | Array, ...]  # of entries that are coded together
    group_pieces: tuple[tuple[int, ...], ...]  # the pieces of each group

    @cached_property
    def entries(self) -> int:
        return self.ends[-1] if self.ends else 0

    @cached_property
    def sizes(self) -> Array:
        return np.array([piece.size for piece in self.pieces], np.int64)

    @cached_property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(int(self.sizes[list(own)].sum()) for own in self.group_pieces)

    def join(self, ticks: Mapping[str, Array]) -> Array:
        """One flat array of all tensors."""
        return np.concatenate([np.empty(0, np.int64), *(ticks[name] for name in self.names)])

    def split(self, flat: Array) -> Ticks:
        """Views of a flat array, by tensor."""
        begins = (0, *self.ends[:-1])
        return {n: flat[i:j] for n, i, j in zip(self.names, begins, self.ends, strict=True)}

    def spread(self, values: Array) -> Array:
        """A value per piece as one per entry."""
        return np.repeat(values, self.sizes)

    def cut_zeros(self, flat: Array) -> tuple[Array, Array]:
        """The entries without the zero bits at the end that all of a piece have; how many."""
        joint = np.bitwise_or.reduceat(flat, self.sizes.cumsum() - self.sizes)
        lowest = np.where(joint == 0, 1, joint & -joint)
        shifts = np.log2(lowest).astype(np.int64)  # exact: powers of two
        return flat >> self.spread(shifts), shifts


def make_plan(like: Weights) -> Plan:
    """The plan of these tensors: large ones are coded each alone, then small ones, counters."""
    return _make_plan(tuple((n, like[n].numel(), like[n].is_floating_point()) for n in like))


@lru_cache(maxsize=64)
def _make_plan(tensors: tuple[tuple[str, int, bool], ...]) -> Plan:
    ordered, pieces, kinds = sorted(tensors), list[Piece](), dict[str, list[int]]()
    for name, numel, floats in ordered:
        kind = f"large {name}" if numel >= FEW else "small"
        for first in range(0, numel, PIECE):
            kinds.setdefault(kind if floats else "counters", []).append(len(pieces))
            pieces.append(Piece(name, first, min(PIECE, numel - first)))
    begins = np.cumsum([0, *(piece.size for piece in pieces)])
    groups = tuple(tuple(kinds[kind]) for kind in sorted(kinds))
    return Plan(
        tuple(name for name, _, _ in ordered),
        tuple(np.cumsum([numel for _, numel, _ in ordered]).tolist()),
        tuple(pieces),
        tuple(_find_entries(group, begins) for group in groups),
        groups,
    )


def _find_entries(group: tuple[int, ...], begins: Array) -> slice | Array:
    """Where the entries of these pieces are: a slice where they are neighbours."""
    if group[-1] - group[0] == len(group) - 1:
        return slice(int(begins[group[0]]), int(begins[group[-1] + 1]))
    return np.concatenate([np.arange(begins[i], begins[i + 1]) for i in group])


def _shift(numbers: Array, by: Array, plan: Plan) -> Array:
    by = plan.spread(by.astype(np.int64))
    if (by > 62).any() or (np.abs(numbers) > FARTHEST >> by).any():
        raise WireError("an update that goes too far")
    return numbers << by


def encode_numbers(numbers: Array) -> bytes:
    """A byte with the largest of them, and a code; digits of six bits first where it is large."""
    most = int(np.abs(numbers).max(initial=0))
    if most <= _NARROW:
        return bytes([most]) + (_encode_piece(numbers + most, 2 * most + 1) if most else b"")
    low, high = numbers & (2**_DIGIT - 1), numbers >> _DIGIT
    return bytes([_SPLIT]) + _encode_piece(low, 2**_DIGIT) + encode_numbers(high)


def bound_numbers(numbers: Array) -> tuple[int, int]:
    """The fewest and the most bytes that `encode_numbers` can take."""
    most = int(np.abs(numbers).max(initial=0))
    if not most:
        return 1, 1
    if most <= _NARROW:
        low, high = entropy.bound_length(numbers + most, 2 * most + 1)
        return 5 + low, 5 + high
    digits = entropy.bound_length(numbers & (2**_DIGIT - 1), 2**_DIGIT)
    rest = bound_numbers(numbers >> _DIGIT)
    return 5 + digits[0] + rest[0], 5 + digits[1] + rest[1]


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
