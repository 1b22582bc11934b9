"""How often what a client says is what others say: comparisons and agreements, by kind.

A comparison is about the likeliest class of a row. `fedsift.aggregators.trust` says what the kinds
are, and what follows from the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsift.aggregators.rules import AuditAnswers, Seen
from fedsift.numerics import lower_median
from fedsift.types import Array, Round, SoftLabels

KINDS = ("students", "overlaps", "hindsight", "audits", "answers")
HINDSIGHT = KINDS.index("hindsight")
MOST = 0.8  # as a usual rate: where all agree, a few rows of one are not yet suspicious
NEGLIGIBLE = 1e-6  # votes, rows and comparisons below this are none


@dataclass(frozen=True, eq=False)
class Counts:
    """Of clients, by kind of evidence: [..., KINDS] each. They may be parts of one."""

    compared: Array
    agreed: Array
    usual: Array  # what would have agreed at the median rate of the others

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        return self.compared, self.agreed, self.usual

    def add(self, other: Counts, decay: float = 1.0) -> Counts:
        """`decay` of these and all of the others."""
        return Counts(*(decay * a + b for a, b in zip(self.parts, other.parts, strict=True)))


def count_agreement(
    heard: Mapping[int, SoftLabels],
    recent: Mapping[int, SoftLabels],
    trust: Mapping[int, float],
    r: Round,
    seen: Seen,
) -> dict[int, Counts]:
    """Of all who are heard and of all whose rows are audited.

    heard: the uploads of this round
    recent: the last uploads before it that can be compared with
    trust: what the word of each client counts
    """
    found = _compare(heard, recent, trust, r, seen)
    return _add_usual(found, trust, r.classes)


def _compare(
    heard: Mapping[int, SoftLabels],
    recent: Mapping[int, SoftLabels],
    trust: Mapping[int, float],
    r: Round,
    seen: Seen,
) -> dict[int, tuple[Array, Array]]:
    """(compared, agreed), [KINDS] each."""
    shape = (len(r.public), r.classes)
    now, answered = np.zeros(shape), np.zeros(shape)
    for id, given in heard.items():
        _add_opinion(now, given, trust[id])
    opinions = now.copy()
    for id, given in recent.items():
        if id not in heard:
            _add_opinion(opinions, given, trust[id])
    for id, said in seen.answers.items():
        answered[said.rows, said.classes] += trust[id]
    asked = answered.sum(1) > 0
    audited = {id for id, old in recent.items() if asked[old.index].any()}
    found = {}
    for id in sorted(heard.keys() | audited):
        labels, old, answers = heard.get(id), recent.get(id), seen.answers.get(id)
        parts = [
            _compare_with_students(labels, old, seen.predictions),
            _compare_with_others(labels, opinions, trust[id]),
            _compare_in_hindsight(old, labels, now, trust[id]),
            _compare_audited(old, answered, answers, trust[id]),
            _compare_answers(answered, answers, trust[id]),
        ]
        found[id] = (np.array([n for n, _ in parts]), np.array([a for _, a in parts]))
    return found


def _add_opinion(opinions: Array, labels: SoftLabels, votes: float) -> None:
    opinions[labels.index, labels.probs.argmax(1)] += votes


def _compare_with_students(
    labels: SoftLabels | None, old: SoftLabels | None, predictions: Array | None
) -> tuple[float, float]:
    """Leaves out samples that the client labelled last time: the students learnt them from it."""
    if predictions is None or labels is None:
        return 0.0, 0.0
    claims = find_claims(labels)
    if old is not None:
        claims = claims * ~np.isin(labels.index, old.index)
    same = labels.probs.argmax(1) == predictions[labels.index].argmax(1)
    return float(claims.sum()), float(claims[same].sum().clip(0, claims.sum()))


def _compare_with_others(
    labels: SoftLabels | None, opinions: Array, own: float
) -> tuple[float, float]:
    """With all opinions but the client's own, which counted `own`."""
    if labels is None:
        return 0.0, 0.0
    top = labels.probs.argmax(1)
    others = opinions[labels.index].sum(1) - own
    return _count(others, opinions[labels.index, top] - own, find_claims(labels))


def _compare_in_hindsight(
    old: SoftLabels | None, labels: SoftLabels | None, now: Array, own: float
) -> tuple[float, float]:
    """What the client sent last time with what others say now."""
    if old is None or labels is None:
        return 0.0, 0.0
    others = now.copy()
    _add_opinion(others, labels, -own)
    top = old.probs.argmax(1)
    return _count(others[old.index].sum(1), others[old.index, top], find_claims(old))


def _compare_audited(
    old: SoftLabels | None, answered: Array, said: AuditAnswers | None, own: float
) -> tuple[float, float]:
    """What the client sent last time with what others answer now."""
    if old is None:
        return 0.0, 0.0
    top = old.probs.argmax(1)
    others, agree = answered[old.index].sum(1), answered[old.index, top]
    if said is not None:  # without its own answers
        mine = np.zeros_like(answered)
        mine[said.rows, said.classes] = own
        others, agree = others - mine[old.index].sum(1), agree - mine[old.index, top]
    return _count(others, agree, find_claims(old))


def _compare_answers(answered: Array, said: AuditAnswers | None, own: float) -> tuple[float, float]:
    """The client's answers with those of the others."""
    if said is None:
        return 0.0, 0.0
    others = answered[said.rows].sum(1) - own
    return _count(others, answered[said.rows, said.classes] - own, np.ones(len(said.rows)))


def _count(others: Array, agree: Array, claims: Array) -> tuple[float, float]:
    """A sample is one comparison, or less where its voters are doubted or the row says little."""
    there = others > NEGLIGIBLE
    weights = np.minimum(others, 1)[there] * claims[there]
    agreed = float(weights @ (agree[there] / others[there]))
    return float(weights.sum()), float(np.clip(agreed, 0, weights.sum()))


def find_claims(labels: SoftLabels) -> Array:
    """How much each row says: 0 where all classes are alike, 1 where it names one class. [m]"""
    even = 1 / labels.probs.shape[1]
    top = labels.probs.max(1).astype(np.float64)  # sums in float32 would depend on their order
    return np.asarray(np.clip((top - even) / (1 - even), 0, 1))


def _add_usual(
    found: Mapping[int, tuple[Array, Array]], trust: Mapping[int, float], classes: int
) -> dict[int, Counts]:
    """The usual rate for a client is the median over the others, from chance to `MOST`."""
    if not found:
        return {}
    compared, agreed = (np.stack(parts) for parts in zip(*found.values(), strict=True))
    weights = compared * np.array([trust[id] for id in found])[:, None]
    rate = (agreed + 1 / classes) / (compared + 1)
    usual = np.stack([find_usual(*kind) for kind in zip(rate.T, weights.T, strict=True)], 1)
    usual = usual.clip(1 / classes, max(1 / classes, MOST))
    return {id: Counts(n, a, u * n) for (id, (n, a)), u in zip(found.items(), usual, strict=True)}


def find_usual(rates: Array, weights: Array) -> Array:
    """For each client the weighted median over the others; 0 where none counts. [clients]"""
    found = np.zeros(len(rates))
    for place in range(len(rates)):
        others = np.arange(len(rates)) != place
        if (weights[others] > NEGLIGIBLE).any():
            found[place] = lower_median(rates[others], weights[others])
    return found
