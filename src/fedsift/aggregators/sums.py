"""Sums of votes that do not depend on the order in which they are added.

A number is split into whole ticks of 2^-32 and of 2^-64. Whole numbers add up without rounding, so
the sum over all clients is the sum of partial sums over some of them, bit for bit. That holds for
up to `MOST_VOTES` votes on a sample; beyond, the last digits of float64 may differ.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsift.types import Array, LabelSums, SoftLabels

TICK = 2.0**32  # ticks of one kind in one of the next larger, and the larger ones in 1
MOST_VOTES = 2**21  # so many ticks of 2^-32 does float64 count one by one


def add_up(uploads: Iterable[tuple[int, SoftLabels]], samples: int, classes: int) -> LabelSums:
    """Votes times labels, and votes, over all uploads. They are read once, one after another."""
    high, low = np.zeros((2, samples, classes + 1))
    for _, upload in uploads:
        counted = np.ones((len(upload), classes + 1))
        counted[:, :-1] = upload.probs
        if upload.weight is not None:
            counted *= upload.weight[:, None]
        _add(high, low, upload.index, counted)
    return _take_seen(high, low)


def merge(parts: Iterable[LabelSums], samples: int, classes: int) -> LabelSums:
    """The sums over all parts."""
    high, low = np.zeros((2, samples, classes + 1))
    for part in parts:
        high[part.index] += part.high
        low[part.index] += part.low
    return _take_seen(high, low)


def divide(sums: LabelSums) -> SoftLabels:
    """The mean of the votes on each sample, and how many there are. Each sum is rounded once."""
    found = (sums.high + sums.low / TICK) / TICK
    return SoftLabels(sums.index, found[:, :-1] / found[:, -1:], found[:, -1])


def _add(high: Array, low: Array, index: Array, numbers: Array) -> None:
    numbers *= TICK
    whole = np.rint(numbers)
    high[index] += whole
    numbers -= whole
    numbers *= TICK
    low[index] += np.rint(numbers, out=numbers)


def _take_seen(high: Array, low: Array) -> LabelSums:
    seen = np.flatnonzero((high[:, -1] != 0) | (low[:, -1] != 0))
    return LabelSums(seen, high[seen], low[seen])
