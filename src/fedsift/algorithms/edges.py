"""Edge servers between clients and server: each joins its clients' uploads, and sends one message.

An edge is one more step inside the mean. It adds up the votes of its clients, and the server adds
up the sums of all edges. Sums do not depend on the order (`aggregators.sums`), so nothing changes
but the bytes, unless the codec of this hop is a lossy one.

Client k of K talks to edge k E // K of E: neighbours in number share an edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from fedsift import registry
from fedsift.aggregators import Uploads, sums
from fedsift.algorithms.votes import MOST
from fedsift.checks import check_whole
from fedsift.codecs import SoftLabelCodec, soft_label_codec
from fedsift.codecs.sums import ExactSums
from fedsift.types import (
    Algorithm,
    GoesThroughEdges,
    LabelSums,
    Link,
    Round,
    SoftLabels,
    UserError,
)

EXACT = "exact"
CLOSE = 0.005  # to 1: half of what codecs let pass, as they round, too


@dataclass(frozen=True)
class Edges:
    """So many edge servers, each with the clients of neighbouring numbers.

    The codec is that of what they send up: "exact" for sums without any loss, or one of soft
    labels, as "float16", for means with their votes.
    """

    count: int = 10  # edge servers
    codec: str | SoftLabelCodec = EXACT  # of what an edge sends up

    def __post_init__(self) -> None:
        check_whole("count", self.count)
        if self.count < 1:
            raise UserError(f"edges takes at least 1 edge server, not {self.count}")
        if self.codec != EXACT and soft_label_codec(self.codec).keeps_reference:
            raise UserError(
                "an edge server sends means that change as a whole, so delta does not fit"
            )

    def edge_of(self, client: int, population: int) -> int:
        return client * self.count // population

    def count_clients(self, edge: int, population: int) -> int:
        """How many clients an edge has."""
        first, end = (-(-population * one // self.count) for one in (edge, edge + 1))
        return end - first

    def check_fits(self, r: Round) -> None:
        if self.count > r.population:
            raise UserError(
                f"{self.count} edge servers for {r.population} clients; use fewer, or topology=flat"
            )

    def encode(self, partial: LabelSums, link: Link) -> bytes:
        if self.codec == EXACT:
            return ExactSums().encode(partial, link)
        means = _as_distributions(sums.divide(partial))
        return soft_label_codec(self.codec).encode(means, link)

    def decode(self, message: bytes, link: Link) -> LabelSums:
        if self.codec == EXACT:
            return ExactSums().decode(message, link)
        labels = soft_label_codec(self.codec).decode(message, link)
        return sums.add_up([(0, labels)], link.samples, link.classes)


def _as_distributions(means: SoftLabels) -> SoftLabels:
    """Codecs take no other rows. Faint votes are a few ticks, and their labels are rounded to whole
    ones, so that a mean of them may sum to anything; the rest stay as they are."""
    total = means.probs.sum(1, keepdims=True)
    even = np.full_like(means.probs, 1 / means.probs.shape[1])
    scaled = np.divide(means.probs, total, out=even, where=total > 0)
    return replace(means, probs=np.where(np.abs(total - 1) < CLOSE, means.probs, scaled))


@dataclass(eq=False)
class MeanOverEdges:
    """The mean of one round, found in two steps. Clients come by ascending number."""

    edges: Edges
    r: Round
    remembers: bool  # whether uploads of earlier rounds count too
    sent: dict[int, int] = field(default_factory=dict)  # edge -> bytes of its message

    def __call__(self, uploads: Uploads, samples: int, classes: int) -> SoftLabels:
        self.sent.clear()
        parts = self._send(uploads, samples, classes)
        return sums.divide(sums.merge(parts, samples, classes))

    def _send(self, uploads: Uploads, samples: int, classes: int) -> Iterator[LabelSums]:
        """What the server reads of each edge; one that has heard nothing sends nothing."""
        for edge, own in groupby(uploads, self._edge_of):
            if edge in self.sent:
                raise ValueError("the clients of an edge server do not stand together")
            link = Link(self.r.number, samples, classes, votes=self._most_votes(edge))
            message = self.edges.encode(sums.add_up(own, samples, classes), link)
            self.sent[edge] = len(message)
            yield self.edges.decode(message, link)

    def _edge_of(self, upload: tuple[int, Any]) -> int:
        return self.edges.edge_of(upload[0], self.r.population)

    def _most_votes(self, edge: int) -> float:
        """What the clients of an edge can have at most."""
        rounds = self.r.number + 1 if self.remembers else 1
        return MOST * rounds * self.edges.count_clients(edge, self.r.population)


def flat() -> None:
    """Clients talk to the server."""


TOPOLOGIES: dict[str, Any] = {"flat": flat, "edges": Edges}


def read_topology(what: str | Edges | None) -> Edges | None:
    """By name, "flat" or "edges(50)", or the edge servers themselves; None where there are none."""
    if what is None or isinstance(what, Edges):
        return what
    name, _, _ = registry.parse_spec(what)
    registry.lookup(TOPOLOGIES, "topology", name, "flat or edges(50)")
    found: Edges | None = registry.build(TOPOLOGIES, "topology", what)
    return found


def place_algorithm(algorithm: Algorithm, topology: str | Edges | None) -> Algorithm:
    """The algorithm as it is played there."""
    edges = read_topology(topology)
    if edges is None:
        return algorithm
    if not isinstance(algorithm, GoesThroughEdges):
        raise UserError(
            "edge servers join soft labels on public samples: use fd, fas, ds-fl, cfd or sift with"
            " mode=labels, or topology=flat"
        )
    return algorithm.over_edges(edges)
