"""Updates of weights on a grid (see `grid`), rounded so that they take at most so many bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import ClassVar

import numpy as np
import torch

from fedsift import seeding
from fedsift.checks import check_number
from fedsift.codecs import grid, wire
from fedsift.codecs.grid import Piece, Ticks
from fedsift.codecs.updates import implied
from fedsift.codecs.weights import find_not_finite, is_statistic
from fedsift.codecs.wire import WireError
from fedsift.types import Array, UserError, Weights

FEWEST, MOST = 0.1, 16  # bits per weight
FINEST, COARSEST = -14, 40  # the step of weights is two to a power from here to there
STATISTICS = 4.0  # steps of running statistics, in deviations and octaves per step of weights
_SAMPLES = struct.Struct("<I")  # private samples behind the weights; 0 from the server


@dataclass(frozen=True)
class Updates:
    """Differences of weights on a grid, at most `bits` per weight and update.

    All weights are rounded to multiples of one step. It is the smallest power of two at which the
    update fits; pieces of the largest tensors may have twice the step. Down, to the nearest: the
    server measures the next update from where the last one led, so what rounding leaves is sent
    later. Up, at random so that the mean is exact: errors of many clients cancel.
    """

    bits: float = 1.0

    id: ClassVar[int] = 32

    def __post_init__(self) -> None:
        check_number("bits", self.bits)
        if not FEWEST <= self.bits <= MOST:
            raise UserError(f"updates takes {FEWEST} to {MOST} bits per weight, not {self.bits}")

    def choose(
        self,
        start: Weights,
        held: Ticks,
        weights: Weights,
        cause: str,
        generator: np.random.Generator | None = None,
    ) -> Ticks:
        """The update from where a receiver is, `held` ticks from `start`, towards the weights.

        Rounded to the nearest step or, with a generator, up or down so that the mean is exact.
        """
        if name := find_not_finite(weights):
            raise UserError(f"weights {name!r} are not finite: training diverged; lower {cause}")
        rounding = _make_rounding(start, held, weights, generator)
        most = self.bits / 8 * sum(v.numel() for v in start.values() if v.is_floating_point())

        def fits(at: int) -> bool:
            return len(grid.encode(rounding.at(at), start)) <= most

        pieces = len(rounding.order)
        high = rounding.coarsest() * pieces
        while not fits(high) and high < COARSEST * pieces:  # at random, not all is rounded to 0
            high += pieces
        while high > FINEST * pieces and fits(high - pieces):  # finer steps take longer to code
            high -= pieces
        low = max(high - pieces + 1, FINEST * pieces)
        while low < high:  # one more piece with twice the step at a time, of the largest first
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return rounding.at(high)

    def encode(
        self, state: Weights, round: int, samples: int, base: Weights, key: seeding.Names
    ) -> bytes:
        """An upload: the update from `base`, the weights that both ends have, to `state`.

        It is rounded at random so that what rounding does to clients averages out.
        """
        generator = seeding.rng(*key, "quantise")
        update = self.choose(base, grid.nothing(base), state, "local.lr", generator)
        return self.seal(update, grid.move(base, update), round, samples)

    def decode(self, message: bytes, round: int, base: Weights) -> tuple[Weights, int]:
        """The state this upload leads to from `base`, and the number of samples behind it."""
        weights, _, samples = self.open(message, base, grid.nothing(base), round)
        return weights, samples

    def seal(self, update: Ticks, result: Weights, round: int, samples: int = 0) -> bytes:
        """The message; it holds only for receivers to whom it gives exactly `result`."""
        payload = _SAMPLES.pack(samples) + grid.encode(update, result)
        return wire.seal(wire.WEIGHTS, self.id, round, payload, implied(result))

    def open(
        self, message: bytes, start: Weights, held: Ticks, round: int
    ) -> tuple[Weights, Ticks, int]:
        """The weights, how many ticks they are from `start`, and the samples behind them."""
        limit = _SAMPLES.size + grid.max_bytes(start)
        payload = wire.unseal(message, wire.WEIGHTS, self.id, round, limit)
        if len(payload) < _SAMPLES.size:
            raise WireError("truncated message: no room for the number of samples")
        ticks = grid.add(held, grid.decode(payload[_SAMPLES.size :], start))
        weights = grid.move(start, ticks)
        wire.verify(message, implied(weights))
        return weights, ticks, _SAMPLES.unpack_from(payload)[0]


@dataclass(frozen=True, eq=False)
class _Rounding:
    """What is to be rounded, and how."""

    wanted: dict[str, Array]  # ticks, not whole
    steps: dict[str, float]  # log2 of a tensor's step in ticks where the step of weights is 1
    order: list[Piece]  # pieces that may have twice the step, the first of them first
    dither: dict[str, Array]  # [0, 1) of a step, added before rounding down
    lowest: dict[str, Array]  # of variances: ticks that lead to 0

    def coarsest(self) -> int:
        """The power of two at which, to the nearest, weights are rounded to 0."""
        largest = {name: float(np.abs(ticks).max(initial=0)) for name, ticks in self.wanted.items()}
        powers = [log2(m) - self.steps[n] for n, m in largest.items() if m and self.steps[n] > -inf]
        return int(np.clip(ceil(max(powers, default=FINEST)) + 2, FINEST, COARSEST))

    def at(self, at: int) -> Ticks:
        """Steps of 2^(at // n), and twice that in the first at % n of the n pieces in order."""
        power, coarser = divmod(at, len(self.order))
        rounded = {name: self._round(name, power, slice(None)) for name in self.wanted}
        for piece in self.order[:coarser]:
            rounded[piece.name][piece.part] = self._round(piece.name, power + 1, piece.part)
        return rounded

    def _round(self, name: str, power: int, part: slice) -> Array:
        """A dither of 1/2 is to the nearest, a random one is unbiased."""
        ticks, dither = self.wanted[name][part], self.dither[name][part]
        if is_statistic(name):
            if power >= COARSEST:  # nothing fits: the receiver keeps the statistics it has
                return np.zeros(len(ticks), np.int64)
            power = min(power, -int(log2(STATISTICS)))  # a deviation, an octave: not coarser
        shift = int(np.clip(np.rint(self.steps[name] + power), 0, 48))
        steps = np.floor(ticks / 2.0**shift + dither).astype(np.int64)
        if name in self.lowest:  # a variance of 0, of a dead channel, must not be rounded down
            steps = np.where(steps << shift < self.lowest[name][part], steps + 1, steps)
        return steps << shift


def _make_rounding(
    start: Weights, held: Ticks, weights: Weights, generator: np.random.Generator | None
) -> _Rounding:
    wanted = {name: ticks - held[name] for name, ticks in grid.measure(start, weights).items()}
    large = sorted(grid.pieces(start), key=lambda piece: -start[piece.name].numel())
    order = [piece for piece in large if start[piece.name].numel() >= grid.FEW] or large[:1]
    sizes = {name: len(ticks) for name, ticks in wanted.items()}
    dither = {
        name: np.full(size, 0.5) if generator is None else generator.random(size)
        for name, size in sizes.items()
    }
    zero = {n: torch.zeros_like(v) for n, v in start.items() if grid.is_variance(n, v)}
    to_zero = grid.measure({name: start[name] for name in zero}, zero)
    lowest = {name: ticks - held[name] for name, ticks in to_zero.items()}
    return _Rounding(wanted, _step_powers(weights), order, dither, lowest)


def _step_powers(weights: Weights) -> dict[str, float]:
    """log2 of each tensor's step in ticks, where the step of weights is 1. Counters are exact.

    A running mean is rounded in proportion to the deviation, a running variance to itself.
    """
    powers = {}
    for name, value in weights.items():
        step = 1 / grid.TICK if value.is_floating_point() else 0.0
        variance = weights.get(f"{name.removesuffix('mean')}var")
        if grid.is_variance(name, value):
            step = STATISTICS * 2**23  # float32 numbers per octave
        elif name.endswith("running_mean") and variance is not None and variance.numel():
            step = max(1.0, STATISTICS * float(variance.double().mean().sqrt()) / grid.TICK)
        powers[name] = log2(step) if step else -inf
    return powers
