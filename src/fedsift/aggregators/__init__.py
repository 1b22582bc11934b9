"""How the server joins uploads into one set of soft labels.

An aggregator is a function

    (uploads: pairs of (client id, SoftLabels), samples N, classes C) -> SoftLabels

`uploads` is an iterable that is read once, so memory is O(N C) whatever the number of clients. The
result carries its votes per row, so a mean of partial means is the mean of all.

An aggregator that keeps state between rounds is an object with two methods, as in
`StatefulAggregator`: `aggregate(uploads, memory, r)` and `forget(memory, client)`.
"""

from __future__ import annotations

from fedsift.aggregators.expguard import ExpGuard
from fedsift.aggregators.means import EnhancedEra, Era, certainty, mean, replace_mean
from fedsift.aggregators.memory import LabelMemory
from fedsift.aggregators.robust import Filter, TrimmedMean, cronus, geometric_median, median
from fedsift.aggregators.rules import (
    Aggregator,
    AuditAnswers,
    JudgesClients,
    Seen,
    StatefulAggregator,
    Uploads,
    check_labels,
    forget_client,
    run_aggregator,
    run_and_judge,
)
from fedsift.aggregators.trust import Trust

AGGREGATORS: dict[str, Aggregator | type[Aggregator | StatefulAggregator]] = {
    "mean": mean,
    "certainty": certainty,
    "era": Era,
    "enhanced-era": EnhancedEra,
    "median": median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": geometric_median,
    "cronus": cronus,
    "filter": Filter,
    "expguard": ExpGuard,
    "memory": LabelMemory,
    "trust": Trust,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "AuditAnswers",
    "EnhancedEra",
    "Era",
    "ExpGuard",
    "Filter",
    "JudgesClients",
    "LabelMemory",
    "Seen",
    "StatefulAggregator",
    "TrimmedMean",
    "Trust",
    "Uploads",
    "certainty",
    "check_labels",
    "cronus",
    "forget_client",
    "geometric_median",
    "mean",
    "median",
    "replace_mean",
    "run_aggregator",
    "run_and_judge",
]
