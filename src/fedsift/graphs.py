"""Which clients exchange messages where there is no server.

A graph is a callable (clients, generator) -> edges (i, j), i < j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsift.types import Array, UserError

Edges = frozenset[tuple[int, int]]
Graph = Callable[[int, np.random.Generator], Edges]
TRIES = 200  # a random graph that is not connected is drawn again


def ring(clients: int, generator: np.random.Generator) -> Edges:
    """Each with the next, the last with the first."""
    return _edges((i, (i + 1) % clients) for i in range(clients))


def complete(clients: int, generator: np.random.Generator) -> Edges:
    """Everyone with everyone."""
    return _edges((i, j) for i in range(clients) for j in range(i))


def grid(clients: int, generator: np.random.Generator) -> Edges:
    """Rows and columns, as square as the number allows; the last row may be short."""
    width = int(np.ceil(np.sqrt(clients)))
    right = [(i, i + 1) for i in range(clients - 1) if (i + 1) % width]
    return _edges(right + [(i, i + width) for i in range(clients - width)])


@dataclass(frozen=True)
class Regular:
    """Random with equal degrees: a circle of near neighbours, its edges switched at random."""

    degree: int = 4  # neighbours of each client, 2 or more

    def __call__(self, clients: int, generator: np.random.Generator) -> Edges:
        if not 2 <= self.degree < clients or clients * self.degree % 2:
            raise UserError(
                f"no connected graph has {clients} clients of degree {self.degree} each"
            )
        near = {
            (i, (i + k) % clients) for i in range(clients) for k in range(1, self.degree // 2 + 1)
        }
        if self.degree % 2:
            near |= {(i, i + clients // 2) for i in range(clients // 2)}
        return _until_connected(clients, lambda: _switch_edges(_edges(near), generator))


@dataclass(frozen=True)
class ErdosRenyi:
    """Every pair with the same probability; drawn again until it is connected."""

    p: float = 0.3  # the probability of an edge, above 0

    def __call__(self, clients: int, generator: np.random.Generator) -> Edges:
        if not 0 < self.p <= 1:
            raise UserError(f"erdos-renyi needs a probability above 0 and at most 1, not {self.p}")
        pairs = [(i, j) for j in range(clients) for i in range(j)]
        return _until_connected(
            clients, lambda: _edges(e for e in pairs if generator.random() < self.p)
        )


@dataclass(frozen=True)
class EdgeList:
    """Edges as you write them: "0-1 1-2 2-0"."""

    edges: str  # pairs of clients, numbered from 0, with spaces between them

    def __call__(self, clients: int, generator: np.random.Generator) -> Edges:
        try:
            pairs = [tuple(int(end) for end in edge.split("-")) for edge in str(self.edges).split()]
            return _edges((a, b) for a, b in pairs)
        except ValueError:
            raise UserError(
                f"cannot read the edges {self.edges!r}; write them as 0-1 1-2 2-0"
            ) from None


GRAPHS: dict[str, Graph | type[Graph]] = {
    "ring": ring,
    "grid": grid,
    "complete": complete,
    "regular": Regular,
    "erdos-renyi": ErdosRenyi,
    "edges": EdgeList,
}


def draw_edges(graph: Graph, clients: int, generator: np.random.Generator) -> Edges:
    """The edges, checked: clients that are there, and all of them connected."""
    found = graph(clients, generator)
    try:
        edges = _edges((int(a), int(b)) for a, b in found)
    except (TypeError, ValueError):
        raise UserError(
            f"the graph gives {type(found).__name__}; it must give pairs of client numbers"
        ) from None
    if any(a < 0 or b >= clients for a, b in edges):
        raise UserError(
            f"an edge names a client that is not there; there are {clients}, numbered from 0"
        )
    if not _is_connected(clients, edges):
        raise UserError("the graph is not connected: some clients could never reach each other")
    return edges


def list_neighbours(edges: Edges, client: int) -> list[int]:
    return sorted({b if a == client else a for a, b in edges if client in (a, b)})


def mixing_weights(edges: Edges, clients: int) -> Array:
    """Symmetric doubly stochastic Metropolis-Hastings: W_ij = 1 / (1 + max(degree i, degree j))."""
    weights = np.zeros((clients, clients))
    degree = (
        np.bincount(np.array(sorted(edges)).ravel(), minlength=clients)
        if edges
        else np.zeros(clients)
    )
    for a, b in edges:
        weights[a, b] = weights[b, a] = 1 / (1 + max(degree[a], degree[b]))
    return weights + np.diag(1 - weights.sum(1))


def _edges(pairs) -> Edges:  # type: ignore[no-untyped-def]
    return frozenset((min(a, b), max(a, b)) for a, b in pairs if a != b)


def _is_connected(clients: int, edges: Edges) -> bool:
    reached, frontier = {0}, [0]
    while frontier:
        new = set(list_neighbours(edges, frontier.pop())) - reached
        reached |= new
        frontier += new
    return len(reached) == clients


def _until_connected(clients: int, draw: Callable[[], Edges]) -> Edges:
    for _ in range(TRIES):
        if _is_connected(clients, edges := draw()):
            return edges
    raise UserError(f"no connected graph in {TRIES} draws; make it denser")


def _switch_edges(edges: Edges, generator: np.random.Generator) -> Edges:
    """a-b, c-d become a-d, c-b wherever that makes no loop and no double edge; degrees stay."""
    now = set(edges)
    for _ in range(10 * len(edges)):
        order = sorted(now)
        (a, b), (c, d) = (order[i] for i in generator.choice(len(order), 2, replace=False))
        new = _edges([(a, d), (c, b)])
        if len({a, b, c, d}) == 4 and not new & now:
            now = (now - {(a, b), (c, d)}) | new
    return frozenset(now)
