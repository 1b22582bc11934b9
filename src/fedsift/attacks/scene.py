"""What an attack is, and what a hostile client knows when it speaks.

An attack is a function

    (answer, scene) -> the altered answer

`answer` is what an honest client would upload: a `LabelAnswer`, or for an attack with
`alters = "weights"` a `WeightAnswer`. With `alters = "data"` it is the client's private data.
A hostile client trains honestly first, and its answer is encoded as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedsift import registry, seeding
from fedsift.types import Array, Client, Round, SoftLabels, UserError

Attack = Callable[[Any, "Scene"], Any]
LABELS, WEIGHTS, DATA = "labels", "weights", "data"


def altered_part(attack: Attack) -> str:
    """What an attack alters: "labels", unless it says otherwise."""
    return str(getattr(attack, "alters", LABELS))


def resolve_inner(who: str, inner: Any, part: str | None = None) -> Attack:
    """The attack inside another one, by name or as an object; on that part, where it is named."""
    from fedsift.attacks import ATTACKS  # here, as the table holds what looks into it

    attack: Attack = registry.resolve(ATTACKS, "attack", inner)
    if part is not None and altered_part(attack) != part:
        raise UserError(f"{who} takes an attack on {part}, not {inner!r}")
    return attack


@dataclass(frozen=True, eq=False)
class Scene:
    """A round as hostile clients see it; they see all uploads of honest ones before they speak."""

    client: Client  # the hostile client that speaks
    r: Round  # the round
    hostile: tuple[int, ...] = ()  # the hostile clients of this cohort
    cohort: int = 1  # clients in it
    answers: Mapping[int, Any] = field(default_factory=dict)  # of all hostile clients, not altered
    listen: Callable[[], dict[int, Any]] = dict  # gives `honest`; decoded only if asked for
    # [N, C]: predictions of the model it received, for an attack with `sees_student = True`
    student: Array | None = None

    @cached_property
    def honest(self) -> dict[int, Any]:
        """By client: the SoftLabels, or the weights and samples, that honest ones upload."""
        return self.listen()

    def find_student(self) -> Array:
        if self.student is None:
            raise UserError("this attack needs `sees_student = True`, to be shown the student")
        return self.student

    @property
    def share(self) -> float:
        """Of the cohort that is hostile."""
        return len(self.hostile) / self.cohort

    @property
    def own(self) -> np.random.Generator:
        """Randomness of this client in this round."""
        return self.r.rng("attack", self.client.id)

    @property
    def shared(self) -> np.random.Generator:
        """Randomness that all hostile clients share in this round."""
        return self.r.rng("attack")

    @property
    def agreed(self) -> np.random.Generator:
        """Randomness that all hostile clients share for the whole run."""
        return seeding.rng(self.r.seed, "attack")

    def honest_mean(self, otherwise: Array) -> tuple[Array, Array]:
        """The mean of the honest soft labels on every sample [N, C], and the votes [N].

        Where nobody has voted, `otherwise` is taken: the client's own predictions.
        """
        total, votes = np.zeros(otherwise.shape), np.zeros(len(otherwise))
        for labels in self.honest.values():
            total[labels.index] += labels.probs
            votes[labels.index] += 1
        seen = votes > 0
        mean = np.array(otherwise, np.float64)
        mean[seen] = total[seen] / votes[seen, None]
        return mean, votes

    def honest_rows(self, sample: int) -> Array:
        """All that honest clients say on one sample, [k, C]."""
        found = [_row_of(labels, sample) for labels in self.honest.values()]
        return np.array([row for row in found if row is not None], np.float64)


def _row_of(labels: SoftLabels, sample: int) -> Array | None:
    at = int(np.searchsorted(labels.index, sample))
    return labels.probs[at] if at < len(labels) and labels.index[at] == sample else None


def one_hot(classes: Array, count: int) -> Array:
    """Certain rows, [N, C]."""
    return np.eye(count)[classes]


def next_class(predicted: Array) -> Array:
    """The class after the likeliest one, [N]."""
    after: Array = (predicted.argmax(1) + 1) % predicted.shape[1]
    return after
