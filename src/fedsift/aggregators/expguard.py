"""Exponential weights for clients, by how far they are from what a rule makes of all of them.

ExpGuard of Roux, Zimmer and Pokutta (2025): w_i <- w_i exp(-eta mean_x d_i(x)). What comes out is
the mean of the votes weighted by w. There every client answers every sample. Here the mean is over
samples that others have answered too, and a client that is absent keeps its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp
from typing import ClassVar

import numpy as np

from fedsift.aggregators.means import mean
from fedsift.aggregators.rules import Aggregator, Uploads, resolve_inner
from fedsift.checks import check_number
from fedsift.types import Round, SoftLabels, UserError

LEAST_WEIGHT = 1e-9  # of a vote: a sample that only a bad client has answered still has a mean


@dataclass(frozen=True, eq=False)
class Losses:
    """What each client has lost so far: eta times the sum of its mean distances."""

    by_client: dict[int, float] = field(default_factory=dict)


class ExpGuard:
    """ExpGuard: the mean of votes weighted by client; a weight shrinks with every distance.

    inner: the rule whose result clients are held against, e.g. "mean" or "median"
    eta: how fast weights shrink; a round at distance 1 costs a factor exp(-eta)

    The distance of two rows is half the sum of their absolute differences, from 0 to 1.
    """

    memory_type: ClassVar[type] = Losses

    def __init__(self, inner: str | Aggregator = "mean", eta: float = 4.0) -> None:
        check_number("eta", eta)
        if not eta > 0:
            raise UserError(f"expguard takes an eta above 0, not {eta}")
        self.inner, self.eta = resolve_inner("expguard", inner), eta

    def aggregate(self, uploads: Uploads, memory: Losses, r: Round) -> tuple[SoftLabels, Losses]:
        for client, loss in memory.by_client.items():  # it may come from a run folder
            if not (np.isfinite(loss) and loss >= 0):
                raise UserError(
                    f"the memory of client {client} does not fit this run: it is damaged"
                )
        heard, shape = dict(sorted(uploads)), (len(r.public), r.classes)
        found = self.inner(heard.items(), *shape)
        distances = find_distances(heard, found, len(r.public))
        losses = memory.by_client | {
            id: memory.by_client.get(id, 0.0) + self.eta * far for id, far in distances.items()
        }
        least = min((losses[id] for id in heard), default=0.0)
        weights = {id: max(exp(least - losses[id]), LEAST_WEIGHT) for id in heard}
        votes = ((id, _weigh(labels, weights[id])) for id, labels in heard.items())
        return mean(votes, *shape), Losses(losses)

    def forget(self, memory: Losses, client: int) -> Losses:
        """Nothing: a client could else clear its name by starting over."""
        return memory


def find_distances(
    heard: Mapping[int, SoftLabels], joined: SoftLabels, samples: int
) -> dict[int, float]:
    """Of every client, from what was made of all: the mean over samples that others answered."""
    voters, place = np.zeros(samples), np.zeros(samples, np.int64)
    place[joined.index] = np.arange(len(joined))
    for labels in heard.values():
        voters[labels.index] += 1
    distances = {}
    for id, labels in heard.items():
        shared = voters[labels.index] > 1
        rows = joined.probs[place[labels.index[shared]]]
        far = np.abs(labels.probs[shared] - rows).sum(1) / 2
        distances[id] = float(far.mean()) if shared.any() else 0.0
    return distances


def _weigh(labels: SoftLabels, weight: float) -> SoftLabels:
    votes = np.ones(len(labels)) if labels.weight is None else labels.weight
    return replace(labels, weight=votes * weight)
