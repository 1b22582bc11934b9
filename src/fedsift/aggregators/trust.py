"""A rule that judges clients, not rows, and remembers what it found.

With active sampling a public sample has about one vote, so a row cannot be held against others. A
client's rows together can. Of every client the server counts comparisons and agreements: how often
the likeliest class of its row is the one

    students    that the server's students predicted before this round,
    overlaps    that other clients have for the same sample, now or in their last upload,
    hindsight   that other clients have now for a sample of its last upload,
    audits      that other clients answer when the server asks them about it a round later,
    answers     and how often its own answers are those of the others.

Two hypotheses on a client are about its rate of agreement. If it is honest, its rate is one of
those that honest clients have: Beta with the median rate of the others as mean and concentration
`alike`. If it is hostile, it agrees by chance: Beta with mean 1 / C. The log ratio of the two
likelihoods of its counts is the evidence, summed over the kinds. Few comparisons give little
evidence. A usual rate near chance, as with students that have learnt nothing, gives none.

Trust is the probability that the client is honest, by what it did in this round or by all it did,
whichever is less. A client trusted less than `votes.LEAST_TRUST` has no vote in this round. No
client is surer of its rows than the median client. Whoever contradicts the students more than is
usual keeps fewer of the rows that do; what it repeats counts as if it contradicted them as often as
the client has been wrong.

docs/trust.md has the formulas, what was measured, and what gets through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsift.aggregators.agreement import KINDS, NEGLIGIBLE, Counts, count_agreement
from fedsift.aggregators.contradictions import doubt_repeated, limit_contradictions
from fedsift.aggregators.evidence import find_error_rate, find_evidence, find_trust
from fedsift.aggregators.memory import Remembered, is_of_earlier_round
from fedsift.aggregators.rules import (
    Aggregator,
    Seen,
    StatefulAggregator,
    Uploads,
    forget_client,
    resolve,
    run_aggregator,
)
from fedsift.aggregators.votes import cap_classes, find_voteless, prepare_votes
from fedsift.checks import check_number, check_whole
from fedsift.types import Array, Round, SoftLabels, Tree, UserError, Verdict

TURNS = 3  # of trust and agreement, each found from the other


@dataclass(frozen=True, eq=False)
class Standing:
    """What the server knows of one client."""

    counts: Counts  # [KINDS]; what is older counts less
    last: Remembered  # its last upload
    trust: float


@dataclass(frozen=True, eq=False)
class TrustMemory:
    by_client: dict[int, Standing] = field(default_factory=dict)
    inner: Tree = field(default_factory=dict)  # of the rule inside


class Trust:
    """The rule inside, on the votes of clients that agree with others as honest ones do.

    inner: the rule for the votes, e.g. "era(0.1)" or "memory(era(0.1))"
    alike: how alike the agreement rates of honest clients are; more is stricter
    decay: what comparisons count after one more round with this client
    rounds: how many rounds a client's last upload can be compared with
    cap: even shares of a client's rows that may name one class, the surest; for example 2
        (None: all count)
    penalty: rows lost besides each above the usual number of contradictions (None: no limit)

    It wants the students' predictions on the public set: one prediction more per round.
    """

    memory_type: ClassVar[type] = TrustMemory

    def __init__(
        self,
        inner: str | Aggregator | StatefulAggregator = "mean",
        alike: float = 6.0,
        decay: float = 0.5,
        rounds: int = 4,
        cap: float | None = None,
        penalty: float | None = 1.0,
    ) -> None:
        check_number("alike", alike)
        check_number("decay", decay)
        check_whole("rounds", rounds)
        if cap is not None:
            check_number("cap", cap)
            if not cap > 0:
                raise UserError(f"trust takes a cap above 0, in even shares, not {cap}")
        if penalty is not None:
            check_number("penalty", penalty)
            if penalty < 0:
                raise UserError(f"trust takes a penalty of 0 or more, not {penalty}")
        if not alike > 0 or not 0 <= decay <= 1 or rounds < 1:
            raise UserError(
                "trust takes an alike above 0, a decay from 0 to 1 and at least 1 round, not"
                f" {alike}, {decay} and {rounds}"
            )
        self.inner = resolve(inner)
        if isinstance(self.inner, Trust):
            raise UserError("trust takes another rule, not trust")
        self.alike, self.decay, self.rounds = alike, decay, rounds
        self.cap, self.penalty = cap, penalty

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
        trust, counts = self._weigh(heard, memory, r, seen)
        voteless = find_voteless(trust)
        inner = memory.inner
        for id in voteless:  # what the rule inside remembers of it has no vote either
            inner = forget_client(self.inner, inner, id)
        votes = prepare_votes(heard, trust, voteless)
        if self.penalty is not None and seen.predictions is not None:
            doubts = self._doubt(heard, counts, memory, r)
            votes = limit_contradictions(
                votes, heard, trust, seen.predictions, self.penalty, doubts
            )
        if self.cap is not None:
            votes = [(id, cap_classes(labels, self.cap)) for id, labels in votes]
        labels, inner = run_aggregator(self.inner, votes, inner, r)
        after = self._remember(heard, trust, counts, memory, r)
        verdicts = {id: Verdict(trust[id], id in voteless) for id in heard}
        return labels, TrustMemory(after, inner), verdicts

    def forget(self, memory: TrustMemory, client: int) -> TrustMemory:
        """The rule inside forgets it. What was found out stays: it could else clear its name by
        starting over."""
        return replace(memory, inner=forget_client(self.inner, memory.inner, client))

    def choose_audit(
        self, memory: TrustMemory, size: int, generator: np.random.Generator, r: Round
    ) -> Array:
        """Samples to ask about, ascending: of rows that clients have sent, equally many of each."""
        _check_memory(memory, r)
        asked: set[int] = set()
        recent = self._find_recent(memory, r.number)
        rows = [generator.permutation(one.last.labels.index) for one in recent.values()]
        rows = [rows[i] for i in generator.permutation(len(rows))]
        for place in range(max(map(len, rows), default=0)):
            for one in rows:
                if len(asked) < size and place < len(one):
                    asked.add(int(one[place]))
        return np.array(sorted(asked), np.int64)

    def _doubt(
        self,
        heard: Mapping[int, SoftLabels],
        counts: Mapping[int, Counts],
        memory: TrustMemory,
        r: Round,
    ) -> dict[int, Array]:
        """What each row counts as a contradiction if the students agree: more if repeated."""
        recent = self._find_recent_labels(memory, r.number)
        return {
            id: doubt_repeated(labels, recent.get(id), find_error_rate(counts[id], self.alike))
            for id, labels in heard.items()
        }

    def _find_recent(self, memory: TrustMemory, number: int) -> dict[int, Standing]:
        first = number - self.rounds
        return {id: one for id, one in sorted(memory.by_client.items()) if one.last.round >= first}

    def _find_recent_labels(self, memory: TrustMemory, number: int) -> dict[int, SoftLabels]:
        return {id: one.last.labels for id, one in self._find_recent(memory, number).items()}

    def _weigh(
        self, heard: Mapping[int, SoftLabels], memory: TrustMemory, r: Round, seen: Seen
    ) -> tuple[dict[int, float], dict[int, Counts]]:
        """The trust in every client heard, and the counts of these and of all who are audited.

        Whom to believe depends on whom one believes: a few turns.
        """
        recent = self._find_recent_labels(memory, r.number)
        known = dict.fromkeys(seen.answers, find_trust(0.0))
        known |= {id: one.trust for id, one in memory.by_client.items()}
        trust = {id: known.get(id, find_trust(0.0)) for id in heard}
        past = {id: one.counts for id, one in memory.by_client.items()}
        for _ in range(TURNS):
            now = count_agreement(heard, recent, known | trust, r, seen)
            both = {
                id: past[id].add(counts, self.decay if id in heard else 1.0)
                if id in past
                else counts
                for id, counts in now.items()
            }
            trust = {
                id: find_trust(
                    min(find_evidence(c[id], self.alike, r.classes) for c in (now, both))
                )
                for id in heard
            }
        return trust, both

    def _remember(
        self,
        heard: Mapping[int, SoftLabels],
        trust: Mapping[int, float],
        counts: Mapping[int, Counts],
        memory: TrustMemory,
        r: Round,
    ) -> dict[int, Standing]:
        after = {
            id: Standing(counts.get(id, one.counts), self._keep(one.last, r), one.trust)
            for id, one in memory.by_client.items()
        }
        for id, labels in heard.items():
            last = Remembered(r.number, SoftLabels(labels.index, labels.probs))
            after[id] = Standing(counts[id], last, trust[id])
        return after

    def _keep(self, last: Remembered, r: Round) -> Remembered:
        """Without its rows once nobody compares with them any more: memory stays bounded."""
        if last.round > r.number - self.rounds or not len(last.labels):
            return last
        return replace(last, labels=last.labels.keep(np.arange(0)))


def _check_memory(memory: TrustMemory, r: Round) -> None:
    """It may come from a run folder."""
    for client, one in memory.by_client.items():
        if not (
            _fits(one.counts.parts) and 0 <= one.trust <= 1 and is_of_earlier_round(one.last, r)
        ):
            raise UserError(f"the memory of client {client} does not fit this run: it is damaged")


def _fits(parts: Iterable[Array]) -> bool:
    compared, agreed, usual = parts
    return all(
        part.shape == (len(KINDS),) and np.isfinite(part).all() and (part >= 0).all()
        for part in (compared, agreed, usual)
    ) and bool(
        (agreed <= compared + NEGLIGIBLE).all()
        and ((usual > 0) & (usual < compared) | (compared <= NEGLIGIBLE)).all()
    )
