"""How the server joins uploads into one set of soft labels.

An aggregator is a function

    (uploads: pairs of (client id, SoftLabels), samples N, classes C) -> SoftLabels

`uploads` is an iterable that is read once, so memory is O(N C) whatever the number of clients. The
result carries its votes per row, so a mean of partial means is the mean of all.

An aggregator that keeps state between rounds is an object with two methods, as in
`StatefulAggregator`: `aggregate(uploads, memory, r)` and `forget(memory, client)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from fedsift import registry
from fedsift.checks import check_number, check_whole
from fedsift.memory import from_tree, to_tree
from fedsift.numerics import entropy
from fedsift.types import Array, Round, SoftLabels, Tree, UserError

Uploads = Iterable[tuple[int, SoftLabels]]
Aggregator = Callable[[Uploads, int, int], SoftLabels]


@runtime_checkable
class StatefulAggregator(Protocol):
    """An aggregator with a memory that is saved with the run.

    The memory is a dict with arrays or numbers at the leaves, {} before the first round. After a
    round its keys are strings. For typed fields, name a dataclass as `memory_type` (fedsift.memory
    says what it may hold). `forget` is called when a client starts over.
    """

    def aggregate(self, uploads: Uploads, memory: Any, r: Round) -> tuple[SoftLabels, Any]:
        """The soft labels of this round, and the memory for the next."""
        ...

    def forget(self, memory: Any, client: int) -> Any:
        """The memory without what it holds of one client."""
        ...


def mean(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """t(x) = mean over the clients *that uploaded x*: the divisor is the number of votes for x."""
    total, votes = np.zeros((samples, classes)), np.zeros(samples)
    for _, upload in uploads:
        weight = np.ones(len(upload)) if upload.weight is None else upload.weight
        total[upload.index] += upload.probs * weight[:, None]
        votes[upload.index] += weight
    seen = np.flatnonzero(votes)
    return SoftLabels(seen, total[seen] / votes[seen, None], votes[seen])


def certainty(uploads: Uploads, samples: int, classes: int) -> SoftLabels:
    """The mean with votes weighted by certainty: a vote counts 1 - H(p) / log C."""
    return mean(_weigh_by_certainty(uploads), samples, classes)


def _weigh_by_certainty(uploads: Uploads) -> Iterator[tuple[int, SoftLabels]]:
    for client, upload in uploads:
        sure = 1 - entropy(upload.probs) / np.log(upload.probs.shape[1])
        votes = np.maximum(sure, LEAST)
        yield (
            client,
            replace(upload, weight=votes if upload.weight is None else votes * upload.weight),
        )


LEAST = 1e-6  # of a vote: a sample of which nobody is certain still has a mean
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
        check_number("temperature", self.temperature)
        if not self.temperature > 0:
            raise UserError(f"era needs a temperature above 0, not {self.temperature}")
        _average(self.weights)

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        average = _average(self.weights)(uploads, samples, classes)
        scaled = average.probs / self.temperature
        return _normalise(average, np.exp(scaled - scaled.max(1, keepdims=True)))


@dataclass(frozen=True)
class EnhancedEra:
    """p^beta / sum p^beta of the mean: keeps order and zeros; beta = 1: no change, > 1: sharper."""

    beta: float = 2.0
    weights: str = "equal"

    def __post_init__(self) -> None:
        check_number("beta", self.beta)
        if not self.beta > 0:
            raise UserError(f"enhanced-era needs a beta above 0, not {self.beta}")
        _average(self.weights)

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        average = _average(self.weights)(uploads, samples, classes)
        return _normalise(
            average, (average.probs / average.probs.max(1, keepdims=True)) ** self.beta
        )


@dataclass(frozen=True, eq=False)
class Remembered:
    """A client's last upload, and the round it is of."""

    round: int
    labels: SoftLabels


@dataclass(frozen=True, eq=False)
class LastUploads:
    by_client: dict[int, Remembered] = field(default_factory=dict)


class LabelMemory:
    """Every client's last upload still counts: `rounds` rounds long, decay^age of a vote each.

    inner: the rule for the votes, e.g. "mean" or "era(0.1)"
    rounds: how many rounds an upload counts, the one it came in included (None: for ever)
    decay: what a vote counts after one more round

    Compare FedCDA (Wang et al. 2024), which keeps weights. Here it costs no bytes.
    """

    memory_type: ClassVar[type] = LastUploads

    def __init__(
        self, inner: str | Aggregator = "mean", rounds: int | None = 4, decay: float = 0.7
    ) -> None:
        if rounds is not None:
            check_whole("rounds", rounds)
        check_number("decay", decay)
        if (rounds is not None and rounds < 1) or not 0 < decay <= 1:
            raise UserError(
                f"memory takes at least 1 round and a decay above 0 up to 1, not {rounds} and"
                f" {decay}"
            )
        rule = registry.resolve(AGGREGATORS, "aggregator", inner)
        if isinstance(rule, StatefulAggregator):
            raise UserError(f"memory takes a rule without a memory of its own, not {inner!r}")
        self.inner, self.rounds, self.decay = rule, rounds, decay

    def aggregate(
        self, uploads: Uploads, memory: LastUploads, r: Round
    ) -> tuple[SoftLabels, LastUploads]:
        for client, old in memory.by_client.items():  # it may come from a run folder
            if not _is_of_earlier_round(old, r):
                raise UserError(
                    f"the memory of client {client}'s upload does not fit this run: it is damaged"
                )
        kept = memory.by_client | {client: Remembered(r.number, u) for client, u in uploads}
        if self.rounds is not None:
            first = r.number - self.rounds + 1
            kept = {client: old for client, old in kept.items() if old.round >= first}
        faded = ((client, self._fade(kept[client], r.number)) for client in sorted(kept))
        return self.inner(faded, len(r.public), r.classes), LastUploads(kept)

    def forget(self, memory: LastUploads, client: int) -> LastUploads:
        return LastUploads({id: old for id, old in memory.by_client.items() if id != client})

    def _fade(self, old: Remembered, now: int) -> SoftLabels:
        age, labels = now - old.round, old.labels
        if not age or self.decay == 1:
            return labels
        votes = np.ones(len(labels)) if labels.weight is None else labels.weight
        return replace(labels, weight=votes * self.decay**age)


def _is_of_earlier_round(old: Remembered, r: Round) -> bool:
    """Whether an upload that was kept can be of this run: its round, samples, classes and votes."""
    index, probs, votes = old.labels.index, old.labels.probs, old.labels.weight
    return bool(
        0 <= old.round < r.number
        and index.ndim == 1
        and index.dtype.kind in "iu"
        and ((index >= 0) & (index < len(r.public))).all()
        and probs.shape == (len(index), r.classes)
        and ((probs >= 0) & np.isfinite(probs)).all()
        and (votes is None or votes.shape == index.shape)
        and (votes is None or ((votes > 0) & np.isfinite(votes)).all())
    )


def _average(weights: str) -> Aggregator:
    return registry.lookup(WEIGHTS, "weights", weights, "equal or certainty")


def _normalise(labels: SoftLabels, rows: Array) -> SoftLabels:
    return SoftLabels(labels.index, rows / rows.sum(1, keepdims=True), labels.weight)


def run_aggregator(
    aggregator: Aggregator | StatefulAggregator, uploads: Uploads, memory: Tree, r: Round
) -> tuple[SoftLabels, Tree]:
    """The checked result of an aggregator, and its memory for the next round."""
    if not isinstance(aggregator, StatefulAggregator):
        labels = aggregator(uploads, len(r.public), r.classes)
        return check_labels(labels, len(r.public), r.classes), memory
    labels, after = _check_pair(aggregator.aggregate(uploads, _restore(aggregator, memory), r))
    return check_labels(labels, len(r.public), r.classes), to_tree(after)


def forget_client(aggregator: Aggregator | StatefulAggregator, memory: Tree, client: int) -> Tree:
    """An aggregator's memory without one client."""
    if not isinstance(aggregator, StatefulAggregator):
        return memory
    return to_tree(aggregator.forget(_restore(aggregator, memory), client))


def _restore(aggregator: StatefulAggregator, memory: Tree) -> Any:
    return from_tree(getattr(aggregator, "memory_type", dict), memory, "the aggregator's memory")


def check_labels(labels: Any, samples: int, classes: int) -> SoftLabels:
    """The labels, or a clear error for whoever wrote the aggregator."""
    if not isinstance(labels, SoftLabels):
        raise UserError(
            f"the aggregator returned {type(labels).__name__}; it must return a fedsift.SoftLabels"
        )
    index, probs = np.asarray(labels.index), np.asarray(labels.probs)
    if probs.shape != (len(index), classes):
        raise UserError(
            f"the aggregator returned probabilities of shape {probs.shape}"
            f" for {len(index)} samples; it must return ({len(index)}, {classes})"
        )
    if len(index) and (index[0] < 0 or index[-1] >= samples or (np.diff(index) <= 0).any()):
        raise UserError(
            f"the aggregator returned indexes that are not ascending, distinct and below {samples}"
        )
    if not (np.isfinite(probs).all() and (probs >= 0).all()):
        raise UserError("the aggregator returned values that are not finite or below 0")
    return labels


def _check_pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise UserError(
            f"aggregate() returned {type(result).__name__}; it must return (SoftLabels, memory)"
        )
    return result


AGGREGATORS: dict[str, Aggregator | type[Aggregator | StatefulAggregator]] = {
    "mean": mean,
    "certainty": certainty,
    "era": Era,
    "enhanced-era": EnhancedEra,
    "memory": LabelMemory,
}
