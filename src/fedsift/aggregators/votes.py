"""What a client's word counts once it is known how far it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import numpy as np

from fedsift.numerics import lower_median
from fedsift.types import SoftLabels

LEAST_TRUST = 0.2  # a client trusted less has no vote


def find_voteless(trust: Mapping[int, float]) -> set[int]:
    """The clients without a vote; those trusted most always have one."""
    least = min(LEAST_TRUST, max(trust.values(), default=0.0))
    return {id for id in trust if trust[id] < least}


def prepare_votes(
    heard: Mapping[int, SoftLabels], trust: Mapping[int, float], voteless: set[int]
) -> list[tuple[int, SoftLabels]]:
    """Votes count by trust, and none is surer than the median client is on average."""
    if not heard:
        return []
    sure = np.array([_find_sureness(labels) for labels in heard.values()])
    level = lower_median(sure, np.array([trust[id] for id in heard]))
    votes = []
    for id, labels in heard.items():
        if id not in voteless:
            weight = np.ones(len(labels)) if labels.weight is None else labels.weight
            votes.append((id, replace(_soften(labels, level), weight=weight * trust[id])))
    return votes


def cap_classes(labels: SoftLabels, cap: float) -> SoftLabels:
    """The surest rows of each class that they name, `cap` even shares of all rows at most."""
    most = ceil(cap * len(labels) / labels.probs.shape[1])
    named, sure = labels.probs.argmax(1), labels.probs.max(1)
    order = np.lexsort((-sure, named))  # by class, then the surest first
    _, first = np.unique(named[order], return_index=True)
    counts = np.diff([*first, len(order)])
    place = np.arange(len(order)) - np.repeat(first, counts)
    return labels.keep(np.sort(order[place < most]))


def _find_sureness(labels: SoftLabels) -> float:
    """The mean probability of the likeliest class."""
    return float(labels.probs.max(1).mean()) if len(labels) else 0.0


def _soften(labels: SoftLabels, level: float) -> SoftLabels:
    """Rows mixed with the even distribution, if need be, so that they are no surer than that."""
    even, sure = 1 / labels.probs.shape[1], _find_sureness(labels)
    if sure <= max(level, even):
        return labels
    share = (max(level, even) - even) / (sure - even)
    return replace(labels, probs=share * labels.probs + (1 - share) * even)
