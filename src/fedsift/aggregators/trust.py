"""A rule that judges clients, not rows, and remembers what it found.

With active sampling a public sample has about one vote, so a row cannot be held against others. A
client's rows together can. Of every client the server counts comparisons and agreements: how often
the likeliest class of its row is the one

    students    that the server's students predicted before this round,
    overlaps    that other clients have for the same sample, now or in their last upload,
    audits      that other clients answered when they were asked about it later (`Round` audits).

Both hypotheses on a client are about its rate of agreement. If it is honest, its rate is one of
those that honest clients have: Beta with mean p, the cohort's median, and concentration `alike`. If
it is hostile, it agrees by chance: Beta with mean 1 / C. The log ratio of the two likelihoods of its
counts is the evidence, by kind. Few comparisons give little evidence, and a rate that nobody can
tell from chance (as with students that have learnt nothing) gives none.

    l <- decay l + evidence, within bounds;  trust = 1 / (1 + exp(-(l + PRIOR)))

docs/trust.md has the formulas, what was measured, and what gets through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import lgamma
from typing import ClassVar

import numpy as np

from fedsift.aggregators.memory import Remembered, is_of_earlier_round
from fedsift.aggregators.rules import (
    Aggregator,
    Seen,
    StatefulAggregator,
    Uploads,
    Verdict,
    forget_client,
    resolve,
    run_aggregator,
)
from fedsift.checks import check_number, check_whole
from fedsift.types import Array, Round, SoftLabels, Tree, UserError

PRIOR = float(np.log(9))  # log odds before any evidence: nine of ten clients are honest
REST = 0.5  # a client trusted less has no vote
TURNS = 3  # of trust and agreement, each found from the other
STUDENTS, OVERLAPS = range(2)  # the kinds of evidence
KINDS = 2


@dataclass(frozen=True, eq=False)
class Tally:
    """Comparisons of clients, by kind of evidence. Counts may be parts of one."""

    compared: Array  # [K, KINDS]
    agreed: Array  # [K, KINDS]
    usual: Array  # [K, KINDS]: what would have agreed at the cohort's median rate


@dataclass(frozen=True, eq=False)
class Standing:
    """What the server knows of one client."""

    compared: Array  # [KINDS], as in Tally; what is older counts less
    agreed: Array
    usual: Array
    trust: float
    last: Remembered | None = None  # its last upload


@dataclass(frozen=True, eq=False)
class TrustMemory:
    by_client: dict[int, Standing] = field(default_factory=dict)
    inner: Tree = field(default_factory=dict)  # of the rule inside


class Trust:
    """The rule inside, on the votes of clients that agree with others as honest ones do.

    inner: the rule for the votes, e.g. "era(0.1)" or "memory(era(0.1))"
    alike: how alike the agreement rates of honest clients are; more is stricter
    decay: what evidence counts after one more round with this client
    rounds: how many rounds a last upload can be compared with
    """

    memory_type: ClassVar[type] = TrustMemory

    def __init__(
        self,
        inner: str | Aggregator | StatefulAggregator = "mean",
        alike: float = 6.0,
        decay: float = 0.5,
        rounds: int = 4,
    ) -> None:
        check_number("alike", alike)
        check_number("decay", decay)
        check_whole("rounds", rounds)
        if not alike > 0 or not 0 <= decay <= 1 or rounds < 1:
            raise UserError(
                "trust takes an alike above 0, a decay from 0 to 1 and at least 1 round, not"
                f" {alike}, {decay} and {rounds}"
            )
        self.inner = resolve(inner)
        if isinstance(self.inner, Trust):
            raise UserError("trust takes another rule, not trust")
        self.alike, self.decay, self.rounds = alike, decay, rounds

    def aggregate(
        self, uploads: Uploads, memory: TrustMemory, r: Round
    ) -> tuple[SoftLabels, TrustMemory]:
        labels, memory, _ = self.judge(uploads, memory, r, Seen())
        return labels, memory

    def judge(
        self, uploads: Uploads, memory: TrustMemory, r: Round, seen: Seen
    ) -> tuple[SoftLabels, TrustMemory, dict[int, Verdict]]:
        """The soft labels, the memory, and a verdict on every client that is heard."""
        _check_memory(memory, r)
        heard = dict(sorted(uploads))
        old = {id: one for id, one in memory.by_client.items() if self._is_recent(one, r)}
        trust, tally = self._weigh(heard, memory, old, r, seen)
        least = min(REST, max(trust.values(), default=0.0))  # somebody always has a vote
        rested = {id for id in trust if trust[id] < least}
        inner = memory.inner
        for id in rested:  # what the rule inside remembers of it has no vote either
            inner = forget_client(self.inner, inner, id)
        level = _median(
            np.array([_sureness(labels) for labels in heard.values()]),
            np.array(list(trust.values())),
        )
        votes = [
            (id, _scale(_soften(heard[id], level), trust[id])) for id in heard if id not in rested
        ]
        labels, inner = run_aggregator(self.inner, votes, inner, r)
        kept = dict(memory.by_client)
        for i, id in enumerate(heard):
            last = Remembered(r.number, replace(heard[id], weight=None))
            kept[id] = Standing(tally.compared[i], tally.agreed[i], tally.usual[i], trust[id], last)
        verdicts = {id: Verdict(trust[id], id in rested) for id in heard}
        return labels, TrustMemory(kept, inner), verdicts

    def forget(self, memory: TrustMemory, client: int) -> TrustMemory:
        kept = {id: one for id, one in memory.by_client.items() if id != client}
        return TrustMemory(kept, forget_client(self.inner, memory.inner, client))

    def _is_recent(self, one: Standing, r: Round) -> bool:
        return one.last is not None and one.last.round >= r.number - self.rounds

    def _weigh(
        self,
        heard: Mapping[int, SoftLabels],
        memory: TrustMemory,
        old: Mapping[int, Standing],
        r: Round,
        seen: Seen,
    ) -> tuple[dict[int, float], Tally]:
        """The trust in every client heard. Whom to believe depends on it: a few turns."""
        before = [memory.by_client.get(id) for id in heard]
        trust = {
            id: _trust_of(0.0) if one is None else one.trust
            for id, one in zip(heard, before, strict=True)
        }
        past = _past(before, self.decay)
        for _ in range(TURNS):
            counts = [
                _compare_with_students(heard, old, seen.predictions),
                _compare_with_others(heard, trust, old, r),
            ]
            compared, agreed = (np.stack(parts, 1) for parts in zip(*counts, strict=True))
            usual = _find_usual(compared, agreed, np.array(list(trust.values())), r.classes)
            now = Tally(compared, agreed, usual * compared)
            both = Tally(*(a + b for a, b in zip(_parts(past), _parts(now), strict=True)))
            odds = np.minimum(
                self._find_evidence(now, r.classes), self._find_evidence(both, r.classes)
            )
            trust = {id: _trust_of(value) for id, value in zip(heard, odds, strict=True)}
        return trust, both

    def _find_evidence(self, tally: Tally, classes: int) -> Array:
        """log P(agreed | honest) - log P(agreed | hostile), summed over the kinds. [K]"""
        chance, found = 1 / classes, np.zeros(len(tally.compared))
        for i, kind in np.argwhere(tally.compared > 0):
            n, a, usual = (part[i, kind] for part in _parts(tally))
            found[i] += _beta_binomial(a, n, self.alike, usual / n)
            found[i] -= _beta_binomial(a, n, self.alike, chance)
        return found


def _trust_of(log_odds: float) -> float:
    """The probability that a client is honest."""
    return float(1 / (1 + np.exp(-np.clip(log_odds + PRIOR, -30, 30))))


def _parts(tally: Tally) -> tuple[Array, Array, Array]:
    return tally.compared, tally.agreed, tally.usual


def _past(standings: Iterable[Standing | None], decay: float) -> Tally:
    rows = [
        np.zeros((3, KINDS))
        if one is None
        else decay * np.stack([one.compared, one.agreed, one.usual])
        for one in standings
    ]
    return Tally(*np.stack(rows, 1))


def _find_usual(compared: Array, agreed: Array, trust: Array, classes: int) -> Array:
    """The median rate of agreement of the cohort, by kind; never below chance. [KINDS]"""
    chance = 1 / classes
    rate = (agreed + chance) / (compared + 1)
    found = [
        _median(rate[:, kind], trust * compared[:, kind]) if compared[:, kind].any() else chance
        for kind in range(KINDS)
    ]
    return np.clip(found, chance, 1 - chance / 10)


def _compare_with_students(
    heard: Mapping[int, SoftLabels], old: Mapping[int, Standing], predictions: Array | None
) -> tuple[Array, Array]:
    """Leaves out samples that the client labelled last time: the students learnt them from it."""
    compared, agreed = np.zeros(len(heard)), np.zeros(len(heard))
    if predictions is None:
        return compared, agreed
    top = predictions.argmax(1)
    for i, (id, labels) in enumerate(heard.items()):
        new = np.ones(len(labels), bool)
        if id in old:
            new = ~np.isin(labels.index, old[id].last.labels.index)
        weights = _find_claims(labels) * new
        compared[i] = weights.sum()
        agreed[i] = weights @ (labels.probs.argmax(1) == top[labels.index])
    return compared, agreed


def _compare_with_others(
    heard: Mapping[int, SoftLabels],
    trust: Mapping[int, float],
    old: Mapping[int, Standing],
    r: Round,
) -> tuple[Array, Array]:
    """A sample counts as one comparison, or as less where those who labelled it are not trusted."""
    votes = np.zeros((len(r.public), r.classes))
    for id, one in old.items():
        if id not in heard:
            labels = one.last.labels
            votes[labels.index, labels.probs.argmax(1)] += one.trust
    for id, labels in heard.items():
        votes[labels.index, labels.probs.argmax(1)] += trust[id]
    compared, agreed = [], []
    for id, labels in heard.items():
        top = labels.probs.argmax(1)
        others = votes[labels.index].sum(1) - trust[id]
        for_it = votes[labels.index, top] - trust[id]
        there = others > 1e-6
        weights = (np.minimum(others, 1) * _find_claims(labels))[there]
        compared.append(weights.sum())
        agreed.append((weights * for_it[there] / others[there]).sum())
    return np.array(compared), np.clip(agreed, 0, compared)


def _find_claims(labels: SoftLabels) -> Array:
    """How much each row says: 0 where all classes are alike, 1 where it names one class. [m]"""
    even = 1 / labels.probs.shape[1]
    return np.asarray((labels.probs.max(1) - even) / (1 - even))


def _sureness(labels: SoftLabels) -> float:
    """The mean probability of the likeliest class."""
    return float(labels.probs.max(1).mean())


def _soften(labels: SoftLabels, level: float) -> SoftLabels:
    """Rows mixed with the even distribution, if need be, so that they are no surer than that."""
    even, sure = 1 / labels.probs.shape[1], _sureness(labels)
    if sure <= level:
        return labels
    share = (level - even) / (sure - even)
    return replace(labels, probs=share * labels.probs + (1 - share) * even)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    total = weights[order].cumsum()
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _beta_binomial(agreed: float, compared: float, alike: float, mean: float) -> float:
    """log B(a + alike p, n - a + alike (1 - p)) - log B(alike p, alike (1 - p))."""
    a, b = alike * mean, alike * (1 - mean)
    return _log_beta(agreed + a, compared - agreed + b) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _scale(labels: SoftLabels, votes: float) -> SoftLabels:
    weight = np.ones(len(labels)) if labels.weight is None else labels.weight
    return replace(labels, weight=weight * votes)


def _check_memory(memory: TrustMemory, r: Round) -> None:
    """It may come from a run folder."""
    for client, one in memory.by_client.items():
        counts = [np.asarray(part) for part in (one.compared, one.agreed, one.usual)]
        fits = all(
            part.shape == (KINDS,) and np.isfinite(part).all() and (part >= 0).all()
            for part in counts
        )
        fits = fits and bool((counts[1] <= counts[0]).all() and (counts[2] <= counts[0]).all())
        fits = fits and 0 <= one.trust <= 1
        if not fits or (one.last is not None and not is_of_earlier_round(one.last, r)):
            raise UserError(f"the memory of client {client} does not fit this run: it is damaged")
