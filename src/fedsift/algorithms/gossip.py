"""Decentralised distillation (Bistritz et al. 2020): no server; clients on a graph agree on the
network's mean soft labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedsift import graphs, registry, seeding
from fedsift.codecs import WireError
from fedsift.codecs.estimates import ESTIMATE_CODECS, EstimateCodec
from fedsift.graphs import GRAPHS, Edges, Graph
from fedsift.models import initial_state
from fedsift.numerics import softmax
from fedsift.types import (
    Array,
    Client,
    Fit,
    Model,
    Predict,
    Recipe,
    Round,
    Server,
    SoftLabels,
    Tree,
    Turn,
    UserError,
    Weights,
)


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

    def start(self, r: Round) -> Server:
        if not 0 < self.budget <= len(r.public):
            raise UserError(
                f"budget {self.budget} does not fit the public set ({len(r.public)} samples)"
            )
        if 0 < r.cohort < r.population:
            raise UserError(
                f"gossip has no server: all {r.population} clients take part; set cohort={r.population}"
            )
        self._edges(r)
        return Server({})

    def prepare_downloads(
        self, server: Server, cohort: Iterable[Client], r: Round
    ) -> dict[int, bytes]:
        clients = list(cohort)
        if not server.notes:
            return {client.id: b"" for client in clients}
        mail = {client.id: server.notes["mail"][str(client.id)].tobytes() for client in clients}
        return {
            client.id: b"".join(mail[j] for j in self.receivers(client.id, r)) for client in clients
        }

    def client_turn(self, client: Client, memory: Tree, heard: bytes, r: Round) -> Turn:
        state = memory.get("model") or initial_state(client.model, r.seed)
        samples = r.public[self._subset(r)]
        mixture: Array | float = 0.0
        if r.number:
            mixture = self._mixture(client.id, memory["estimate"], heard, r)
            lesson = SoftLabels(self._subset(r), on_simplex(mixture)).on(r.public)
            key = r.key("distill", client.id)
            state = yield Fit(
                client.model, state, lesson, self.distill, key, self.distill.epochs * (r.number - 1)
            )
        key = r.key("local", client.id)
        state = yield Fit(
            client.model, state, client.data, self.local, key, self.local.epochs * r.number
        )
        own = softmax((yield Predict(client.model, state, samples)), 1.0)
        estimate = mixture + own - memory.get("own", 0.0)
        message = self.codec.encode(estimate, r.number)
        estimate = self.codec.decode(
            message, r.number, self.budget, r.classes
        )  # as the others have it
        return {"model": state, "estimate": estimate, "own": own}, message

    def server_turn(self, server: Server, said: Mapping[int, bytes], r: Round) -> Turn:
        """The post: it keeps the mail of this round for the next, unread."""
        return Server(
            {},
            {
                "mail": {
                    str(client): np.frombuffer(m, np.uint8).copy() for client, m in said.items()
                }
            },
        )
        yield  # a turn is a generator

    def models_to_evaluate(
        self, server: Server, memories: Mapping[int, Tree], r: Round
    ) -> dict[str, tuple[Model, Weights]]:
        return {
            f"client {id}": (r.model_of(id), memory["model"])
            for id, memory in sorted(memories.items())
        }

    def receivers(self, client: int, r: Round) -> list[int]:
        """Who hears what this client says."""
        return graphs.neighbours(self._edges(r), client)

    def _edges(self, r: Round) -> Edges:
        return _drawn(self.graph, r.population, r.seed)

    def _subset(self, r: Round) -> Array:
        """One subset for the whole run: an estimate is of the same samples in every round."""
        return seeding.subset(seeding.rng(r.seed, "gossip"), len(r.public), self.budget)

    def _mixture(self, client: int, estimate: Array, heard: bytes, r: Round) -> Array:
        weights = graphs.mixing(self._edges(r), r.population)[client]
        near, size = self.receivers(client, r), self.codec.size(self.budget, r.classes)
        if len(heard) != size * len(near):
            raise WireError(
                f"{len(heard)} bytes from {len(near)} neighbours instead of {size} each"
            )
        mixture = weights[client] * estimate
        for place, other in enumerate(near):
            letter = heard[place * size : (place + 1) * size]
            mixture = mixture + weights[other] * self.codec.decode(
                letter, r.number - 1, self.budget, r.classes
            )
        return mixture


@lru_cache(maxsize=32)
def _drawn(graph: Graph, clients: int, seed: int) -> Edges:
    return graphs.drawn(graph, clients, seeding.rng(seed, "graph"))


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
    """No server: clients on a graph exchange estimates of the network's mean soft labels (Bistritz
    et al. 2020).
    """
    return Gossip(
        registry.build(GRAPHS, "graph", graph) if isinstance(graph, str) else graph,
        budget,
        local or Recipe(),
        distill or Recipe(),
        registry.lookup(ESTIMATE_CODECS, "codec", codec, "gossip: float32 or float16")
        if isinstance(codec, str)
        else codec,
    )
