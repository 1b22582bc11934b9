"""What an aggregator is, and how one is run and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedsift import registry
from fedsift.memory import from_tree, to_tree
from fedsift.types import Array, Round, SoftLabels, Tree, UserError, Verdict

Uploads = Iterable[tuple[int, SoftLabels]]
Aggregator = Callable[[Uploads, int, int], SoftLabels]


@runtime_checkable
class StatefulAggregator(Protocol):
    """An aggregator with a memory that is saved with the run.

    The memory is a dict with arrays or numbers at the leaves, {} before the first round. After a
    round its keys are strings. For typed fields, name a dataclass as `memory_type` (fedsift.memory
    says what it may hold). `forget` is called when a client says that it starts over. What the rule
    has found out about it should stay, since anybody can say so.
    """

    def aggregate(self, uploads: Uploads, memory: Any, r: Round) -> tuple[SoftLabels, Any]:
        """The soft labels of this round, and the memory for the next."""
        ...

    def forget(self, memory: Any, client: int) -> Any:
        """The memory without what it holds of one client."""
        ...


@dataclass(frozen=True, eq=False)
class AuditAnswers:
    """Samples that a client was asked about, and the classes that it answered."""

    rows: Array  # [A], ascending
    classes: Array  # [A]


@dataclass(frozen=True, eq=False)
class Seen:
    """What the server has beside the uploads, for an aggregator that judges clients."""

    predictions: Array | None = None  # [N, C]: the students' soft labels before this round
    # to an audit, by client; those of a client are there once its upload has been read
    answers: Mapping[int, AuditAnswers] = field(default_factory=dict)


@runtime_checkable
class JudgesClients(Protocol):
    """A stateful aggregator that looks at more than the uploads, and says what it thinks of each
    client."""

    def judge(
        self, uploads: Uploads, memory: Any, r: Round, seen: Seen
    ) -> tuple[SoftLabels, Any, dict[int, Verdict]]:
        """As `aggregate`, with a verdict on each client heard."""
        ...

    def choose_audit(
        self, memory: Any, size: int, generator: np.random.Generator, r: Round
    ) -> Array:
        """Samples to ask all clients about in this round, ascending, `size` at most."""
        ...


def resolve(aggregator: Any) -> Aggregator | StatefulAggregator:
    """A rule by name or as an object."""
    from fedsift.aggregators import AGGREGATORS  # here, as the table holds what looks into it

    rule: Aggregator | StatefulAggregator = registry.resolve(AGGREGATORS, "aggregator", aggregator)
    return rule


def resolve_inner(who: str, inner: str | Aggregator) -> Aggregator:
    """The rule inside another one, by name or as an object: one without a memory."""
    rule = resolve(inner)
    if isinstance(rule, StatefulAggregator):
        raise UserError(f"{who} takes a rule without a memory of its own, not {inner!r}")
    return rule


def run_aggregator(
    aggregator: Aggregator | StatefulAggregator, uploads: Uploads, memory: Tree, r: Round
) -> tuple[SoftLabels, Tree]:
    """The checked result of an aggregator, and its memory for the next round."""
    return run_and_judge(aggregator, uploads, memory, r, Seen())[:2]


def run_and_judge(
    aggregator: Aggregator | StatefulAggregator,
    uploads: Uploads,
    memory: Tree,
    r: Round,
    seen: Seen,
) -> tuple[SoftLabels, Tree, dict[int, Verdict]]:
    """The same, and the verdicts of an aggregator that judges clients."""
    verdicts: dict[int, Verdict] = {}
    if not isinstance(aggregator, StatefulAggregator):
        labels = aggregator(uploads, len(r.public), r.classes)
        return check_labels(labels, len(r.public), r.classes), memory, verdicts
    restored = restore_memory(aggregator, memory)
    if isinstance(aggregator, JudgesClients):
        labels, after, verdicts = aggregator.judge(uploads, restored, r, seen)
    else:
        labels, after = _check_pair(aggregator.aggregate(uploads, restored, r))
    return check_labels(labels, len(r.public), r.classes), to_tree(after), verdicts


def forget_client(aggregator: Aggregator | StatefulAggregator, memory: Tree, client: int) -> Tree:
    """An aggregator's memory without one client."""
    if not isinstance(aggregator, StatefulAggregator):
        return memory
    return to_tree(aggregator.forget(restore_memory(aggregator, memory), client))


def restore_memory(aggregator: StatefulAggregator | JudgesClients, memory: Tree) -> Any:
    """A memory from a tree, as the aggregator has it."""
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
