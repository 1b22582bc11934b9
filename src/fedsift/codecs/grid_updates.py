"""Updates of weights on a grid (see `grid`), rounded so that they take at most so many bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Any, ClassVar

import numpy as np
import torch

from fedsift import seeding
from fedsift.checks import check_number
from fedsift.codecs import grid, wire
from fedsift.codecs.grid import Plan, Ticks
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

    bits: per weight of an update, the most on average, 0.1 to 16

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
        fits = _Sizes(rounding, most).fits
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
        return rounding.plan.split(rounding.at(high))

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
    """What is to be rounded, and how. Arrays are flat, as the plan lays them out."""

    plan: Plan
    wanted: Array  # ticks, not whole
    steps: Array  # by piece: log2 of a step in ticks where the step of weights is 1
    statistics: Array  # by piece: whether it is of running statistics
    order: list[int]  # pieces that may have twice the step, the first of them first
    dither: Array  # [0, 1) of a step, added before rounding down
    variances: Array  # entries of running variances
    lowest: Array  # of these: ticks that lead to 0

    def coarsest(self) -> int:
        """The power of two at which, to the nearest, weights are rounded to 0."""
        begins = self.plan.sizes.cumsum() - self.plan.sizes
        largest = np.maximum.reduceat(np.abs(self.wanted), begins).tolist()
        pairs = zip(largest, self.steps.tolist(), strict=True)
        powers = [log2(most) - step for most, step in pairs if most and step > -inf]
        return int(np.clip(ceil(max(powers, default=FINEST)) + 2, FINEST, COARSEST))

    def powers(self, at: int) -> Array:
        """Of each piece: at // n, and one more for the first at % n of the n pieces in order."""
        power, coarser = divmod(at, len(self.order))
        powers = np.full(len(self.plan.pieces), power)
        powers[self.order[:coarser]] += 1
        return powers

    def at(self, at: int) -> Array:
        """All ticks, in steps of two to these powers.

        A dither of 1/2 is to the nearest, a random one is unbiased.
        """
        powers, plan = self.powers(at), self.plan
        kept = self.statistics & (powers >= COARSEST)  # nothing fits: the receiver keeps them
        finest = -int(log2(STATISTICS))  # a deviation, an octave: not coarser
        powers = np.where(self.statistics, np.minimum(powers, finest), powers)
        shifts = np.clip(np.rint(self.steps + powers), 0, 48).astype(np.int64)
        scaled = self.wanted * plan.spread(np.ldexp(1.0, -shifts))
        steps = np.floor(np.add(scaled, self.dither, out=scaled), out=scaled).astype(np.int64)
        by = plan.spread(shifts)
        places = self.variances  # 0, of a dead channel, must not be rounded down
        steps[places] += steps[places] << by[places] < self.lowest
        if kept.any():
            steps[plan.spread(kept)] = 0
        return steps << by


class _Sizes:
    """Whether an update fits, with as little coding as that takes.

    Bounds from histograms decide most cases. Where they do not, groups of pieces are coded; a group
    whose pieces have the steps they had before is known already.
    """

    def __init__(self, rounding: _Rounding, most: float) -> None:
        self._rounding, self._plan, self._most = rounding, rounding.plan, most
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}

    def fits(self, at: int) -> bool:
        powers = self._rounding.powers(at)
        keys = [(i, *powers[list(own)]) for i, own in enumerate(self._plan.group_pieces)]
        numbers = None
        if any(key not in self._known for key in keys):
            numbers, _ = self._plan.cut_zeros(self._rounding.at(at))
            for key in keys:
                if key not in self._known:
                    self._known[key] = grid.bound_numbers(numbers[self._plan.groups[key[0]]])
        for key in sorted(keys, key=lambda key: self._known[key][0] - self._known[key][1]):
            low, high = (self._total(keys, which) for which in (0, 1))
            if high <= self._most or low > self._most:
                return high <= self._most
            if numbers is None:
                numbers, _ = self._plan.cut_zeros(self._rounding.at(at))
            length = len(grid.encode_numbers(numbers[self._plan.groups[key[0]]]))
            self._known[key] = length, length
        return self._total(keys, 1) <= self._most

    def _total(self, keys: list[tuple[Any, ...]], which: int) -> int:
        """An update of zeros is one byte; others also have a byte per piece."""
        total = sum(self._known[key][which] for key in keys)
        return 1 if total <= len(keys) else 1 + len(self._plan.pieces) + total


def _make_rounding(
    start: Weights, held: Ticks, weights: Weights, generator: np.random.Generator | None
) -> _Rounding:
    plan = grid.make_plan(start)
    wanted = plan.join(grid.measure(start, weights)) - plan.join(held)
    large = sorted(range(len(plan.pieces)), key=lambda i: -start[plan.pieces[i].name].numel())
    order = [i for i in large if start[plan.pieces[i].name].numel() >= grid.FEW] or large[:1]
    dither = np.full(plan.entries, 0.5) if generator is None else generator.random(plan.entries)
    steps = _step_powers(weights)
    zero = {n: torch.zeros_like(v) for n, v in start.items() if grid.is_variance(n, v)}
    to_zero = grid.measure({name: start[name] for name in zero}, zero)
    places = plan.split(np.arange(plan.entries))
    nowhere = np.empty(0, np.int64)
    return _Rounding(
        plan,
        wanted,
        np.array([steps[piece.name] for piece in plan.pieces]),
        np.array([is_statistic(piece.name) for piece in plan.pieces], bool),
        order,
        dither,
        np.concatenate([nowhere, *(places[name] for name in to_zero)]),
        np.concatenate([nowhere, *(ticks - held[name] for name, ticks in to_zero.items())]),
    )


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
