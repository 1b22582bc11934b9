"""How the server joins uploads. An aggregator folds an *iterable* of uploads in one pass: memory
O(N C), whatever the number of clients. The result carries its votes per row, so a mean of partial
means is the mean of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedsift import registry
from fedsift.numerics import entropy
from fedsift.types import Array, SoftLabels, UserError

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


def certainty(uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
    """The mean in which a client that is surer of x has more to say: its vote counts 1 - H(p) / log
    C.
    """
    return mean(_by_certainty(uploads), samples, classes)


def _by_certainty(uploads: Iterable[SoftLabels]) -> Iterator[SoftLabels]:
    for upload in uploads:
        sure = 1 - entropy(upload.probs) / np.log(upload.probs.shape[1])
        votes = np.maximum(sure, LEAST)
        yield replace(upload, weight=votes if upload.weight is None else votes * upload.weight)


LEAST = 1e-6  # of a vote: a sample of which nobody knows anything still has a mean
WEIGHTS = {"equal": mean, "certainty": certainty}


@dataclass(frozen=True)
class Era:
    """Entropy-reduction aggregation (DS-FL): softmax(mean / temperature), 0 < temperature < 1
    sharpens.

    The mean's votes are "equal", or weighted by "certainty".
    """

    temperature: float = 0.1
    weights: str = "equal"

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"era needs a temperature above 0, not {self.temperature}")
        _average(self.weights)

    def __call__(self, uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
        average = _average(self.weights)(uploads, samples, classes)
        scaled = average.probs / self.temperature
        return _rescaled(average, np.exp(scaled - scaled.max(1, keepdims=True)))


@dataclass(frozen=True)
class EnhancedEra:
    """p^beta / sum p^beta of the mean: keeps order and zeros, beta = 1 changes nothing, beta > 1
    sharpens.
    """

    beta: float = 2.0
    weights: str = "equal"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise UserError(f"enhanced-era needs a beta above 0, not {self.beta}")
        _average(self.weights)

    def __call__(self, uploads: Iterable[SoftLabels], samples: int, classes: int) -> SoftLabels:
        average = _average(self.weights)(uploads, samples, classes)
        return _rescaled(
            average, (average.probs / average.probs.max(1, keepdims=True)) ** self.beta
        )


def _average(weights: str) -> Aggregator:
    return registry.lookup(WEIGHTS, "weights", weights, "equal or certainty")


def _rescaled(labels: SoftLabels, rows: Array) -> SoftLabels:
    return SoftLabels(labels.index, rows / rows.sum(1, keepdims=True), labels.weight)


AGGREGATORS: dict[str, Aggregator | type[Aggregator]] = {
    "mean": mean,
    "certainty": certainty,
    "era": Era,
    "enhanced-era": EnhancedEra,
}
