"""Decentralised distillation (Bistritz et al. 2020): peers on a graph agree on mean soft labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedsift import graphs, registry, seeding
from fedsift.algorithms import students
from fedsift.algorithms.local import train_locally
from fedsift.checks import check_members, check_recipe, check_whole
from fedsift.codecs import WireError
from fedsift.codecs.estimates import ESTIMATE_CODECS, EstimateCodec
from fedsift.graphs import GRAPHS, Edges, Graph
from fedsift.models import initial_state
from fedsift.numerics import softmax
from fedsift.types import (
    Array,
    Client,
    Fit,
    Labelled,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Turn,
    UserError,
    Weights,
)

SUM_OFF = 0.5  # rounding to float16 adds up over many rounds, but never to this


@dataclass(frozen=True, eq=False)
class GossipMemory:
    """A client's: its model, its estimate of the network's mean, and its own last soft labels."""

    model: Weights | None = None
    estimate: Array | None = None
    own: Array | None = None


@dataclass(frozen=True, eq=False)
class Mail:
    """The last round's messages, by sender, unread."""

    messages: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Gossip:
    """Each client keeps an estimate u_i of the network's mean soft labels on one subset of the
    public set.

    A round: mix the neighbours' estimates, learn from the mixture and from private data, then
    account for what was learnt: u_i <- sum_j W_ij u_j + (s_i^new - s_i^old). W is doubly
    stochastic, so the mean of the u_i is the mean of the s_i at all times. What stands in for a
    server here only carries the mail; every client takes part in every round.
    """

    graph: Graph
    budget: int
    local: Recipe = Recipe()
    distill: Recipe = Recipe()
    codec: EstimateCodec = ESTIMATE_CODECS["float32"]

    client_memory: ClassVar[type] = GossipMemory
    server_memory: ClassVar[type] = Mail

    def __post_init__(self) -> None:
        check_whole("budget", self.budget)

    def start(self, r: Round) -> Server:
        if not 0 < self.budget <= len(r.public):
            raise UserError(
                f"budget {self.budget} does not fit the public set ({len(r.public)} samples)"
            )
        if 0 < r.cohort < r.population:
            raise UserError(
                f"gossip has no server: all {r.population} clients take part;"
                f" set cohort={r.population}"
            )
        self._edges(r)
        return Server({}, Mail())

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        mail = server.memory.messages
        if not mail:
            return {client.id: b"" for client in cohort}
        nothing = bytes(self.codec.size(self.budget, r.classes))  # of one whose message was refused
        return {
            c.id: b"".join(mail.get(j, nothing) for j in self.receivers(c.id, r)) for c in cohort
        }

    def client_turn(
        self, client: Client, memory: GossipMemory, download: bytes, r: Round
    ) -> Turn[tuple[GossipMemory, bytes]]:
        weights = memory.model or initial_state(client.model, r.seed)
        mixture: Array | float = 0.0
        labels: Labelled | None = None
        if r.number and memory.estimate is not None:
            mixture = self._mixture(client.id, memory.estimate, download, r)
            labels = SoftLabels(self._subset(r), on_simplex(mixture)).on(r.public)
        if labels is not None and client.model.is_network:
            key, epoch = r.key("distill", client.id), self.distill.epochs * (r.number - 1)
            weights = yield Fit(client.model, weights, labels, self.distill, key, epoch)
            students.check_distilled(weights)
        weights = yield from train_locally(
            client, weights, self.local, r, lessons=labels, kept=True
        )
        own = softmax((yield Predict(client.model, weights, r.public[self._subset(r)])), 1.0)
        estimate = mixture + own - (0.0 if memory.own is None else memory.own)
        message = self.codec.encode(estimate, r.number)
        estimate = self._decode(message, r.number, r)  # as the others have it
        return GossipMemory(weights, estimate, own), message

    def check_upload(self, server: Server, client: int, upload: bytes, r: Round) -> bytes:
        self._decode(upload, r.number, r)
        return upload

    def server_turn(
        self, server: Server, uploads: Iterable[tuple[int, bytes]], r: Round
    ) -> Turn[Server]:
        """The post: it keeps the mail of this round for the next, unread."""
        return Server({}, Mail(dict(uploads)))
        yield  # a turn is a generator

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Any], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return {f"client {id}": (r.model_of(id), m.model) for id, m in sorted(memories.items())}

    def uploaded_labels(self, upload: bytes, r: Round) -> SoftLabels:
        return SoftLabels(self._subset(r), on_simplex(self._decode(upload, r.number, r)))

    def receivers(self, client: int, r: Round) -> list[int]:
        """Who hears what this client says."""
        return graphs.list_neighbours(self._edges(r), client)

    def _edges(self, r: Round) -> Edges:
        return _draw_graph(self.graph, r.population, r.seed)

    def _subset(self, r: Round) -> Array:
        """One subset for the whole run: an estimate is of the same samples in every round."""
        return seeding.subset(seeding.rng(r.seed, "gossip"), len(r.public), self.budget)

    def _mixture(self, client: int, estimate: Array, download: bytes, r: Round) -> Array:
        """The weighted mean of this client's estimate and its neighbours'.

        Where there is nothing from a neighbour, its share goes to the client's own.
        """
        weights = graphs.mixing_weights(self._edges(r), r.population)[client]
        near, size = self.receivers(client, r), self.codec.size(self.budget, r.classes)
        if len(download) != size * len(near):
            raise WireError(
                f"{len(download)} bytes from {len(near)} neighbours instead of {size} each"
            )
        mixture = weights[client] * estimate
        for place, other in enumerate(near):
            message = download[place * size : (place + 1) * size]
            said = self._decode(message, r.number - 1, r) if any(message) else estimate
            mixture = mixture + weights[other] * said
        return mixture

    def _decode(self, message: bytes, round: int, r: Round) -> Array:
        """Rows sum to 1 but for rounding: neither mixing nor a change of soft labels alters it."""
        table = self.codec.decode(message, round, self.budget, r.classes)
        if not (np.abs(table.sum(1) - 1) <= SUM_OFF).all():
            raise WireError("estimates whose rows do not sum to 1")
        return table


@lru_cache(maxsize=32)
def _draw_graph(graph: Graph, clients: int, seed: int) -> Edges:
    return graphs.draw_edges(graph, clients, seeding.rng(seed, "graph"))


def on_simplex(rows: Array) -> Array:
    """Estimates may step a little outside: cut at 0 and rescaled, rows are probabilities again."""
    positive = np.maximum(rows, 1e-6)
    return positive / positive.sum(1, keepdims=True)


def gossip(
    budget: int,
    *,
    graph: str | Graph = "ring",
    codec: str | EstimateCodec = "float32",
    local: Recipe | None = None,
    distill: Recipe | None = None,
) -> Gossip:
    """No server: clients on a graph exchange estimates of the network's mean soft labels
    (Bistritz et al. 2020).

    budget: public samples whose estimates are exchanged, the same in every round
    graph: who hears whom, e.g. "ring", "regular(4)", "edges(0-1 1-2)" (fedsift ls graphs)
    codec: of the messages: float32 or float16
    local: how clients train
    distill: how the mean soft labels are distilled
    """
    return Gossip(
        registry.resolve(GRAPHS, "graph", graph),
        budget,
        check_recipe("local", local),
        check_recipe("distill", distill),
        _codec(codec),
    )


def _codec(what: Any) -> EstimateCodec:
    if isinstance(what, str):
        found = registry.lookup(ESTIMATE_CODECS, "codec", what, "gossip: float32 or float16")
    else:
        found = what
        check_members(found, CODEC_MEMBERS, "codec", "write codec='float32' or 'float16'")
    codec: EstimateCodec = found
    return codec


CODEC_MEMBERS = ("encode", "decode", "size")  # of `EstimateCodec`
