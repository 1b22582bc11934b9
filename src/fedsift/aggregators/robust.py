"""Classical robust rules, sample by sample: each judges the votes for one sample by themselves.

They need several votes for a sample, as where all clients answer the same ones (sampler `none`).
With fewer than three votes nobody can say which one is off, and all of them are the mean.
A vote's weight counts in every mean and median; which votes are dropped is decided by their number.

All uploads of a round are held at once: memory is O(votes).

Compare Yin et al. 2018 (median, trimmed mean), Pillutla et al. 2022 (geometric median), Chang et
al. 2019 (Cronus) and Roux, Zimmer and Pokutta 2025, who put them to the test in distillation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedsift.aggregators.rules import Uploads
from fedsift.checks import check_number
from fedsift.types import Array, SoftLabels, UserError

ENOUGH = 3  # votes for a sample
BLOCK = 1 << 20  # numbers that are looked at together
STEPS = 100  # of the geometric median, at most
NEAR = 1e-10  # distances below this are no distance

# (rows [S, V, C], votes [S, V]) -> [S, C], for S samples with V votes each
RowRule = Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class Group:
    """Samples with equally many votes."""

    index: Array  # [S]
    rows: Array  # [S, V, C]
    votes: Array  # [S, V]


def median(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """The median of every class's probability over the votes, normalised again."""
    return join_rows(uploads, classes, _find_median)


def geometric_median(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """The row with the least sum of distances to the votes (Weiszfeld's iteration)."""
    return join_rows(uploads, classes, _find_geometric_median)


def cronus(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """Cronus: twice the share f / 2V of the votes that stand out most is dropped, f < V / 2."""
    return join_rows(uploads, classes, _run_cronus)


@dataclass(frozen=True)
class TrimmedMean:
    """For every class, the mean without the lowest and the highest votes.

    share: of the votes that are dropped at each end, at least one; below 0.5
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        _check_share("trimmed-mean", self.share)

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        return join_rows(uploads, classes, self._trim)

    def _trim(self, rows: Array, votes: Array) -> Array:
        drop = _count_dropped(self.share, rows.shape[1])
        order = np.argsort(rows, axis=1, kind="stable")[:, drop : rows.shape[1] - drop]
        kept = np.take_along_axis(rows, order, 1)
        weights = np.take_along_axis(np.broadcast_to(votes[..., None], rows.shape), order, 1)
        return (kept * weights).sum(1) / weights.sum(1)


@dataclass(frozen=True)
class Filter:
    """The mean without the votes that stand out most along the direction of largest spread.

    share: of the votes that are dropped, at least one; below 0.5
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        _check_share("filter", self.share)

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        return join_rows(uploads, classes, self._filter)

    def _filter(self, rows: Array, votes: Array) -> Array:
        keep = rows.shape[1] - _count_dropped(self.share, rows.shape[1])
        return _average(rows, _drop_outliers(rows, votes, np.full(len(rows), keep)))


def join_rows(uploads: Uploads, classes: int, rule: RowRule) -> SoftLabels:
    """The rule's row for every sample with enough votes, the mean's for the others."""
    index, joined, votes = [], [], []
    for group in _group_by_votes(uploads, classes):
        use = rule if group.votes.shape[1] >= ENOUGH else _average
        index.append(group.index)
        joined.append(_normalise(use(group.rows, group.votes), group))
        votes.append(group.votes.sum(1))
    if not index:
        return SoftLabels(np.zeros(0, np.int64), np.zeros((0, classes)), np.zeros(0))
    order = np.argsort(found := np.concatenate(index))
    return SoftLabels(found[order], np.concatenate(joined)[order], np.concatenate(votes)[order])


def _group_by_votes(uploads: Uploads, classes: int) -> Iterator[Group]:
    """Samples by their number of votes, votes in the order of client ids."""
    heard = [labels for _, labels in sorted(uploads, key=lambda pair: pair[0]) if len(labels)]
    if not heard:
        return
    index = np.concatenate([labels.index for labels in heard])
    rows = np.concatenate([labels.probs for labels in heard]).astype(np.float64)
    votes = np.concatenate(
        [np.ones(len(one)) if one.weight is None else one.weight for one in heard]
    )
    order = np.argsort(index, kind="stable")
    sample, first, count = np.unique(index[order], return_index=True, return_counts=True)
    for number in np.unique(count):
        mine = np.flatnonzero(count == number)
        for part in np.array_split(mine, max(1, len(mine) * number * classes // BLOCK)):
            which = order[first[part, None] + np.arange(number)]  # [S, V]
            yield Group(sample[part], rows[which], votes[which])


def _normalise(rows: Array, group: Group) -> Array:
    """Rows that sum to 1; where a rule found nothing for any class, the mean."""
    total = rows.sum(1, keepdims=True)
    rows = np.where(total > NEAR, rows, _average(group.rows, group.votes))
    return rows / rows.sum(1, keepdims=True)


def _average(rows: Array, votes: Array) -> Array:
    return np.asarray((rows * votes[..., None]).sum(1) / votes.sum(1)[:, None])


def _find_median(rows: Array, votes: Array) -> Array:
    """The middle of the lowest and the highest value that have half of the votes on either side."""
    order = np.argsort(rows, axis=1, kind="stable")
    values = np.take_along_axis(rows, order, 1)
    weights = np.take_along_axis(np.broadcast_to(votes[..., None], rows.shape), order, 1)
    below = weights.cumsum(1)  # [S, V, C]
    half, slack = below[:, -1:] / 2, NEAR * below[:, -1:]
    low = (below >= half - slack).argmax(1)
    high = (below > half + slack).argmax(1)
    ends = [np.take_along_axis(values, end[:, None], 1)[:, 0] for end in (low, high)]
    return np.asarray((ends[0] + ends[1]) / 2)


def _find_geometric_median(rows: Array, votes: Array) -> Array:
    """Starts at the mean; a vote at no distance is given a tiny one (Beck and Sabach 2015)."""
    centre = _average(rows, votes)
    for _ in range(STEPS):
        distance = np.sqrt(((rows - centre[:, None]) ** 2).sum(2))
        moved = _average(rows, votes / np.maximum(distance, NEAR))
        if np.abs(moved - centre).max() < NEAR:
            break
        centre = moved
    return centre


def _run_cronus(rows: Array, votes: Array) -> Array:
    number = rows.shape[1]
    share = 1 - (math.ceil(number / 2) - 1) / (2 * number)
    for _ in range(2):
        left = (votes > 0).sum(1)
        votes = _drop_outliers(rows, votes, np.maximum(1, (share * left).astype(np.int64)))
    return _average(rows, votes)


def _drop_outliers(rows: Array, votes: Array, keep: Array) -> Array:
    """The votes, 0 for those that stand out most; equally far ones stay or go together.

    A vote's score is |<y - mean, e>|, e the direction in which the votes spread most. `keep` [S]
    votes stay, or more.
    """
    there, root = votes > 0, np.sqrt(votes)[..., None]
    off = (rows - _average(rows, votes)[:, None]) * root  # [S, V, C]
    left, spread, _ = np.linalg.svd(off, full_matrices=False)
    far = np.abs(left[..., 0]) * spread[:, :1] / np.where(there, root[..., 0], 1)
    score = np.where(there, far, np.inf)
    last = np.take_along_axis(np.sort(score, 1), keep[:, None] - 1, 1)  # [S, 1]
    return np.where(score <= last + NEAR, votes, 0)


def _count_dropped(share: float, votes: int) -> int:
    """At least one, and never so many that nothing is left on either side."""
    return min(max(1, math.ceil(share * votes)), (votes - 1) // 2) if share else 0


def _check_share(who: str, share: float) -> None:
    check_number("share", share)
    if not 0 <= share < 0.5:
        raise UserError(f"{who} drops a share from 0 to below 0.5, not {share}")
