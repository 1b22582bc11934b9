"""Means of the votes for each sample, and sharpened means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedsift import registry
from fedsift.aggregators import sums
from fedsift.aggregators.rules import Aggregator, Uploads, resolve_inner
from fedsift.checks import check_number
from fedsift.numerics import entropy
from fedsift.types import Array, SoftLabels, UserError


def mean(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """t(x) = mean over the clients *that uploaded x*: the divisor is the number of votes for x.

    uploads: pairs (client, SoftLabels); read once
    samples: N, the size of the public set
    classes: C
    """
    return sums.divide(sums.add_up(uploads, samples, classes))


def certainty(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """The mean with votes weighted by certainty: a vote counts 1 - H(p) / log C."""
    return mean(_weigh_by_certainty(uploads), samples, classes)


def _weigh_by_certainty(uploads: Uploads) -> Iterator[tuple[int, SoftLabels]]:
    for client, upload in uploads:
        sure = 1 - entropy(upload.probs) / np.log(upload.probs.shape[1])
        votes = np.maximum(sure, LEAST_VOTE)
        yield (
            client,
            replace(upload, weight=votes if upload.weight is None else votes * upload.weight),
        )


def replace_mean(rule: Any, other: Aggregator) -> Any:
    """The same rule with another in the place of its mean, such as one that is found in two steps.

    A rule of your own says with `with_mean(mean)` what it is then.
    """
    if rule is mean:
        return other
    if rule is certainty:
        return partial(_join_by_certainty, other)
    if hasattr(rule, "with_mean"):
        return rule.with_mean(other)
    name = getattr(rule, "__name__", type(rule).__name__)
    raise UserError(
        f"{name} needs every vote, and an edge server sends one mean of many: use mean, certainty,"
        " era, enhanced-era or memory of these, or topology=flat"
    )


def _join_by_certainty(
    join: Aggregator, uploads: Uploads, samples: int, classes: int
) -> SoftLabels:
    return join(_weigh_by_certainty(uploads), samples, classes)


def _leave_votes(uploads: Uploads) -> Uploads:
    return uploads


LEAST_VOTE = 1e-6  # of a vote: a sample of which nobody is certain still has a mean
WEIGHTS = {"equal": _leave_votes, "certainty": _weigh_by_certainty}


@dataclass(frozen=True)
class Era:
    """Entropy-reduction aggregation (DS-FL): softmax(mean / temperature), 0 < temperature < 1
    sharpens.

    The votes are "equal", or weighted by "certainty". The rule inside may be another than the mean,
    as in era(0.1, inner=median).
    """

    temperature: float = 0.1  # below 1 sharpens
    weights: str = "equal"  # equal, or certainty
    inner: str | Aggregator = "mean"  # the rule that is sharpened

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature)
        if not self.temperature > 0:
            raise UserError(f"era needs a temperature above 0, not {self.temperature}")
        _weigher(self.weights)
        _inner(self)

    def with_mean(self, mean: Aggregator) -> Era:
        return replace(self, inner=replace_mean(_inner(self), mean))

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        average = _join(self, uploads, samples, classes)
        scaled = average.probs / self.temperature
        return _normalise(average, np.exp(scaled - scaled.max(1, keepdims=True)))


@dataclass(frozen=True)
class EnhancedEra:
    """p^beta / sum p^beta of the mean: keeps order and zeros; beta = 1: no change, > 1: sharper.

    `weights` and `inner` as in era.
    """

    beta: float = 2.0  # above 1 sharpens
    weights: str = "equal"  # equal, or certainty
    inner: str | Aggregator = "mean"  # the rule that is sharpened

    def __post_init__(self) -> None:
        check_number("beta", self.beta)
        if not self.beta > 0:
            raise UserError(f"enhanced-era needs a beta above 0, not {self.beta}")
        _weigher(self.weights)
        _inner(self)

    def with_mean(self, mean: Aggregator) -> EnhancedEra:
        return replace(self, inner=replace_mean(_inner(self), mean))

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        average = _join(self, uploads, samples, classes)
        return _normalise(
            average, (average.probs / average.probs.max(1, keepdims=True)) ** self.beta
        )


def _join(rule: Era | EnhancedEra, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """What is to be sharpened."""
    return _inner(rule)(_weigher(rule.weights)(uploads), samples, classes)


def _weigher(weights: str) -> Callable[[Uploads], Uploads]:
    return registry.lookup(WEIGHTS, "weights", weights, "equal or certainty")


def _inner(rule: Era | EnhancedEra) -> Aggregator:
    return resolve_inner("era" if isinstance(rule, Era) else "enhanced-era", rule.inner)


def _normalise(labels: SoftLabels, rows: Array) -> SoftLabels:
    return SoftLabels(labels.index, rows / rows.sum(1, keepdims=True), labels.weight)
