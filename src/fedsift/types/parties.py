"""Clients, the server and a round as they see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsift import seeding
from fedsift.types.basics import Array, Model, Weights
from fedsift.types.samples import Labelled, Samples, SoftLabels


@dataclass(frozen=True)
class Link:
    """What both ends of a message know without being told."""

    round: int
    samples: int  # N
    classes: int  # C
    drawn_from: tuple[seeding.Names, ...] = ()  # seeds from which a picked set may have been drawn
    votes: float = (
        1.0  # the most votes a row may stand for: 1 from a client, more from an edge server
    )
    before: bytes = b""  # what stands before the message: its checksum covers it
    fewest: int = 0  # rows
    most: int | None = None  # rows; None: all samples
    drawn: int | None = None  # the place in `drawn_from` of the only seed that picks; None: any set


@dataclass(frozen=True, eq=False)
class Draws:
    """A sampler's randomness: `shared` is equal at all clients of a round, `own` is not."""

    shared: np.random.Generator  # equal at all clients of a round
    own: np.random.Generator  # of this client and round alone


@dataclass(frozen=True, eq=False)
class Client:
    id: int  # 0, 1, ..., as in clients.json
    model: Model  # what it trains or asks
    data: Labelled  # its private samples

    def __repr__(self) -> str:
        return f"Client({self.id}, {len(self.data)} samples, model {self.model.name!r})"

    @property
    def label_counts(self) -> Array:
        return np.bincount(self.data.labels, minlength=self.data.classes)


@dataclass(frozen=True, eq=False)
class Round:
    """One round as every party sees it; randomness is named after it, never stored."""

    number: int  # from 0 on
    seed: int  # of the run
    public: Samples  # the public set, [N]; nobody has its labels
    classes: int  # C
    models: tuple[Model, ...]  # the networks in the federation: the server has a student of each
    model_of: Callable[[int], Model]  # what a client has: one of these, or no network
    population: int = 1  # clients in the federation
    cohort: int = 0  # clients that take part in a round; 0 where nobody has said
    # weights that the students start from, by architecture: only the server has them, and only
    # before the first round; None where they start from random weights
    start: Mapping[str, Weights] | None = None  # first weights by model; None: chance
    others: tuple[Model, ...] = ()  # models of clients that are no networks

    def key(self, *names: int | str) -> seeding.Names:
        return (self.seed, self.number, *names)

    def rng(self, *names: int | str) -> np.random.Generator:
        return seeding.rng(*self.key(*names))

    def draws(self, client: int) -> Draws:
        return Draws(*(seeding.rng(*names) for names in self._picks(client)))

    def link(self, client: int) -> Link:
        return Link(self.number, len(self.public), self.classes, self._picks(client))

    def _picks(self, client: int) -> tuple[seeding.Names, seeding.Names]:
        return self.key("pick"), self.key("pick", client)


@dataclass(frozen=True)
class Verdict:
    """What an aggregator that judges clients thinks of one client in one round."""

    trust: float  # from 0 to 1
    voteless: bool  # its rows count nothing in this round


@dataclass(frozen=True, eq=False)
class Server:
    """What the server keeps between rounds: one student per architecture, and its own memory.

    `counts` are figures of the last round that the algorithm wants in the metrics. `distilled` are
    the soft labels it taught its students in that round; a simulation scores them, nobody keeps
    them. `verdicts` are on the clients heard in that round, `edge_up` what edge servers sent in it.
    """

    students: dict[str, Weights]  # by the name of the model
    memory: Any = field(default_factory=dict)  # whatever else must survive the round
    counts: dict[str, int] = field(default_factory=dict)  # figures for the metrics of this round
    distilled: SoftLabels | None = None  # indexes are into the public set
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # by client
    edge_up: dict[int, int] = field(default_factory=dict)  # edge server -> bytes of its message

    def __repr__(self) -> str:
        students = ", ".join(
            f"{name} ({sum(value.numel() for value in weights.values()):,} weights)"
            for name, weights in self.students.items()
        )
        return f"Server(students: {students or 'none'}, memory: {type(self.memory).__name__})"
