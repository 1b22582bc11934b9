"""Rows that contradict the students: a client with more of them than is usual keeps fewer.

A liar that agrees often enough to keep its vote is wrong on its other rows, and most of these
contradict the students. So such rows are limited by what other clients have, and whoever has more
than that loses what is above it and as much again. What is left are the rows that the students
doubt least. A row that names a class which the students do not know yet is news, and hardly counts
as a contradiction.

What a client says again the students have learnt from it: that they agree says nothing. Such a row
counts as a contradiction in part, as often as this client has been wrong before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.aggregators.agreement import NEGLIGIBLE, find_claims, find_usual
from fedsift.types import Array, SoftLabels

ALWAYS = 0.15  # the share of its rows with which a client may contradict, however few others do
Votes = Sequence[tuple[int, SoftLabels]]


@dataclass(frozen=True, eq=False)
class _Compared:
    """The rows of one client against the students."""

    claims: Array  # [m]: how much each row says
    against: Array  # [m]: how much of that contradicts the students, or is doubted
    likeness: Array  # [m]: their probability of the class that it names, over that of their own

    @property
    def total(self) -> float:
        return float(self.claims.sum())

    @property
    def contradicting(self) -> float:
        return float(self.against.sum())

    @property
    def agreeing_share(self) -> float:
        return 1 - self.contradicting / self.total if self.total > NEGLIGIBLE else 0.0


def limit_contradictions(
    votes: Votes,
    heard: Mapping[int, SoftLabels],
    trust: Mapping[int, float],
    predictions: Array,
    penalty: float,
    doubts: Mapping[int, Array],
) -> list[tuple[int, SoftLabels]]:
    """The votes without the rows that contradict the students too often.

    heard: the same rows as they were sent, before they were softened
    doubts: what each of these rows counts as a contradiction at least
    penalty: rows that do not count for each row above the usual number, beside that row
    """
    named = np.bincount(predictions.argmax(1), minlength=predictions.shape[1])
    known = weigh_classes(named)
    found = {id: _compare(heard[id], predictions, known, doubts[id]) for id, _ in votes}
    rates = np.array([one.agreeing_share for one in found.values()])
    weights = np.array([one.total * trust[id] for id, one in found.items()])
    usual = 1 - find_usual(rates, weights)
    return [
        (id, labels.keep(_choose(found[id], max(most, ALWAYS), penalty)))
        for (id, labels), most in zip(votes, usual, strict=True)
    ]


def doubt_repeated(labels: SoftLabels, last: SoftLabels | None, error_rate: float) -> Array:
    """The error rate for rows that name the same class as in the last upload, else 0. [m]"""
    doubts = np.zeros(len(labels))
    if last is not None:
        _, here, there = np.intersect1d(labels.index, last.index, True, return_indices=True)
        same = labels.probs[here].argmax(1) == last.probs[there].argmax(1)
        doubts[here[same]] = error_rate
    return doubts


def weigh_classes(named: Array) -> Array:
    """How much a contradiction counts, by the class that it names: 1 where the students name that
    class at least as often as an even share of the samples, less where they do so less often.

    named: how many samples the students take for each class, [C]
    """
    weights: Array = np.minimum(named * len(named) / named.sum(), 1)
    return weights


def _compare(labels: SoftLabels, predictions: Array, known: Array, doubts: Array) -> _Compared:
    named, said = labels.probs.argmax(1), predictions[labels.index]
    claims = find_claims(labels)
    against = claims * np.maximum(known[named] * (named != said.argmax(1)), doubts)
    return _Compared(claims, against, said[np.arange(len(named)), named] / said.max(1))


def _choose(one: _Compared, usual: float, penalty: float) -> Array:
    """Which rows count, [m]: all that agree, and of the others the likeliest up to the limit."""
    allowed = usual * one.total
    excess = one.contradicting - allowed
    if excess <= NEGLIGIBLE:
        return np.ones(len(one.claims), bool)
    rows = one.against <= 0
    order = np.flatnonzero(~rows)
    order = order[np.argsort(-one.likeness[order], kind="stable")]
    rows[order[one.against[order].cumsum() <= allowed - penalty * excess + NEGLIGIBLE]] = True
    return rows
