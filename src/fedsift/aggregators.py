"""How the server joins uploads. An aggregator folds an *iterable* of uploads in one pass: memory O(N C), whatever the
number of clients. The result carries its votes per row, so a mean of partial means is the mean of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedsift.types import Array, Mistake, SoftLabels

Aggregator = Callable[[Iterable[SoftLabels], int, int], SoftLabels]


def mean(uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
    """t(x) = mean over the clients *that uploaded x*: the divisor is the number of votes for x."""
    total, votes = np.zeros((samples, classes)), np.zeros(samples)
    for upload in uploads:
        weight = np.ones(len(upload)) if upload.weight is None else upload.weight
        total[upload.index] += upload.probs * weight[:, None]
        votes[upload.index] += weight
    seen = np.flatnonzero(votes)
    return SoftLabels(seen, total[seen] / votes[seen, None], votes[seen])


@dataclass(frozen=True)
class Era:
    """Entropy-reduction aggregation (DS-FL): softmax(mean / temperature), 0 < temperature < 1 sharpens."""

    temperature: float = 0.1

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise Mistake(f"era needs a temperature above 0, not {self.temperature}")

    def __call__(self, uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
        average = mean(uploads, samples, classes)
        scaled = average.probs / self.temperature
        return _rescaled(average, np.exp(scaled - scaled.max(1, keepdims=True)))


@dataclass(frozen=True)
class EnhancedEra:
    """p^beta / sum p^beta of the mean: keeps order and zeros, beta = 1 changes nothing, beta > 1 sharpens."""

    beta: float = 2.0

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise Mistake(f"enhanced-era needs a beta above 0, not {self.beta}")

    def __call__(self, uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
        average = mean(uploads, samples, classes)
        return _rescaled(average, (average.probs / average.probs.max(1, keepdims=True)) ** self.beta)


def _rescaled(labels: SoftLabels, rows: Array) -> SoftLabels:
    return SoftLabels(labels.index, rows / rows.sum(1, keepdims=True), labels.weight)


AGGREGATORS: dict[str, Aggregator | type[Aggregator]] = {
    "mean": mean,
    "era": Era,
    "enhanced-era": EnhancedEra,
}
