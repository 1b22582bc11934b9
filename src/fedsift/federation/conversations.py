"""What was said in a round, in small: a bounded sample of picks and soft labels, for the report.

A listener hears every upload that the server reads, and keeps little of it. Nothing that is
computed depends on it, so a run has the same bits with it and without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedsift import seeding
from fedsift.codecs.parts import Parts, split_parts
from fedsift.ledger import RoundBytes
from fedsift.losses import spread
from fedsift.numerics import softmax
from fedsift.types import Array, Model, Predict, Round, Server, SoftLabels, Turn

WATCHED = 512  # public samples of which anything is kept, in a whole run
CLIENTS = 16  # of a round
PICKS = 16  # of a client
LISTED = 16  # samples without a label, and as many contested ones, in a round


@dataclass(frozen=True, eq=False)
class Conversation:
    """A round. Samples are indexes into the public set."""

    up: Parts
    down: Parts
    rows: dict[int, int] = field(default_factory=dict)  # client -> soft labels uploaded
    said: dict[int, SoftLabels] = field(default_factory=dict)  # some of them
    aggregate: SoftLabels | None = None  # what the server made of these samples
    student: SoftLabels | None = None  # what its students then think of them, in the mean
    labelled: int = 0  # public samples with a label
    contested: int = 0  # those whose labels name different classes
    unlabelled: tuple[int, ...] = ()  # some of the others
    disputed: tuple[int, ...] = ()  # some contested ones, the most contested first


@lru_cache(maxsize=64)
def watched_samples(seed: int, samples: int) -> Array:
    """The public samples that are watched, ascending: the same in every round of a run."""
    return seeding.subset(seeding.rng(seed, "watched"), samples, min(samples, WATCHED))


class Listener:
    """Hears the uploads of a round one at a time."""

    def __init__(self, r: Round, clients: Iterable[int]) -> None:
        """`clients` are those who may be heard."""
        everyone = sorted(clients)
        self._kept = {everyone[i] for i in spread(len(everyone), CLIENTS)}
        self._r, self._watched = r, watched_samples(r.seed, len(r.public))
        self._rank = np.full(len(r.public), WATCHED)
        order = seeding.rng(r.seed, "order of watched").permutation(len(self._watched))
        self._rank[self._watched] = order
        self.clear()

    def clear(self) -> None:
        """Nothing has been heard."""
        count = len(self._r.public)
        self._votes, self._first = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self._apart = np.zeros(count, np.int32)  # votes that name another class than the first one
        self._rows: dict[int, int] = {}
        self._said: dict[int, SoftLabels] = {}

    def add(self, client: int, labels: SoftLabels) -> None:
        index, named = labels.index, labels.probs.argmax(1)
        new = self._votes[index] == 0
        self._first[index[new]] = named[new]
        self._apart[index] += self._first[index] != named
        self._votes[index] += 1
        if client in self._kept:
            rank = self._rank[index]
            chosen = np.sort(np.argsort(rank, kind="stable")[:PICKS])
            chosen = chosen[rank[chosen] < WATCHED]
            self._rows[client] = len(index)
            self._said[client] = labels.keep(chosen)

    def finish_turn(
        self, server: Server, models: Iterable[Model], sent: Conversation
    ) -> Turn[Conversation]:
        """What has been heard, what the server taught, and what its students predict."""
        if not self._votes.any():
            return sent
        watched = self._watched
        without = watched[self._votes[watched] == 0][:LISTED]
        contested = watched[self._apart[watched] > 0]
        share = self._apart[contested] / self._votes[contested]
        disputed = contested[np.argsort(-share, kind="stable")[:LISTED]]
        picked = [labels.index for labels in self._said.values()]
        samples = np.unique(np.concatenate([*picked, disputed]))
        student = yield from _ask_students(server, models, self._r, samples)
        return replace(
            sent,
            rows=self._rows,
            said=self._said,
            aggregate=_take(server.distilled, samples),
            student=student,
            labelled=int(np.count_nonzero(self._votes)),
            contested=int(np.count_nonzero(self._apart)),
            unlabelled=tuple(without.tolist()),
            disputed=tuple(disputed.tolist()),
        )


def count_parts(
    round: int, uploads: Mapping[int, bytes], downloads: Mapping[int, bytes], sent: RoundBytes
) -> Conversation:
    """Where the bytes of a round went, as many as the ledger has."""
    up, down = Parts(), Parts()
    for client, size in sent.up.items():
        message = uploads[client]
        copies = size // max(1, len(message))  # one to each neighbour, where there is no server
        up = up + split_parts(message, round) * copies
    known: dict[bytes, Parts] = {}  # many get the same message
    for client in sent.down.keys() & downloads.keys():
        message = downloads[client]
        if message not in known:
            known[message] = split_parts(message, round)
        down = down + known[message]
    return Conversation(up, up if sent.edges is not None else down)


def _ask_students(
    server: Server, models: Iterable[Model], r: Round, samples: Array
) -> Turn[SoftLabels | None]:
    """The mean of what they predict."""
    jobs: list[Any] = [
        Predict(model, server.students[model.name], r.public[samples])
        for model in models
        if model.name in server.students
    ]
    if not jobs or not len(samples):
        return None
    answers = yield jobs
    return SoftLabels(samples, np.mean([softmax(logits, 1.0) for logits in answers], 0))


def _take(labels: SoftLabels | None, samples: Array) -> SoftLabels | None:
    """The rows of these samples, of those that there are."""
    return None if labels is None else labels.keep(np.isin(labels.index, samples))
