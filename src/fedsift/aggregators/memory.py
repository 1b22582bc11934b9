"""A memory of what clients uploaded in earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsift.aggregators.means import replace_mean
from fedsift.aggregators.rules import Aggregator, Uploads, resolve_inner
from fedsift.checks import check_number, check_whole
from fedsift.types import Round, SoftLabels, UserError

FAINTEST = 2.0**-40  # of a vote: sums are exact to 2^-64


@dataclass(frozen=True, eq=False)
class Remembered:
    """A client's last upload, and the round it is of."""

    round: int
    labels: SoftLabels


@dataclass(frozen=True, eq=False)
class LastUploads:
    by_client: dict[int, dict[int, SoftLabels]] = field(default_factory=dict)  # then by round


class LabelMemory:
    """Earlier uploads still count: `rounds` rounds long, decay^age of a vote each.

    inner: the rule for the votes, e.g. "mean" or "era(0.1)"
    rounds: how many rounds an upload counts, the one it came in included (None: for ever)
    decay: what a vote counts after one more round; never less than 2^-40
    last: how many uploads of a client count, the newest first (None: all)

    Compare FedCDA (Wang et al. 2024), which keeps weights. Here it costs no bytes.
    """

    memory_type: ClassVar[type] = LastUploads

    def __init__(
        self,
        inner: str | Aggregator = "mean",
        rounds: int | None = 4,
        decay: float = 0.7,
        last: int | None = 1,
    ) -> None:
        counts = {"rounds": rounds, "last": last}
        given = {name: value for name, value in counts.items() if value is not None}
        for name, value in given.items():
            check_whole(name, value)
        check_number("decay", decay)
        if any(value < 1 for value in given.values()) or not 0 < decay <= 1:
            raise UserError(
                "memory takes at least 1 round, a decay above 0 up to 1 and at least 1 last"
                f" upload, not {rounds}, {decay} and {last}"
            )
        self.inner = resolve_inner("memory", inner)
        self.rounds, self.decay, self.last = rounds, decay, last

    def with_mean(self, mean: Aggregator) -> LabelMemory:
        inner = replace_mean(self.inner, mean)
        return LabelMemory(inner, self.rounds, self.decay, self.last)

    def aggregate(
        self, uploads: Uploads, memory: LastUploads, r: Round
    ) -> tuple[SoftLabels, LastUploads]:
        for client, old in memory.by_client.items():  # it may come from a run folder
            if not all(is_of_earlier_round(Remembered(*one), r) for one in old.items()):
                raise UserError(
                    f"the memory of client {client}'s upload does not fit this run: it is damaged"
                )
        new = dict(uploads)
        kept = {
            client: self._keep(memory.by_client.get(client, {}), new.get(client), r.number)
            for client in sorted(memory.by_client.keys() | new.keys())
        }
        faded = (
            (client, self._fade(labels, r.number - number))
            for client, of in kept.items()
            for number, labels in of.items()
        )
        joined = self.inner(faded, len(r.public), r.classes)
        return joined, LastUploads({client: of for client, of in kept.items() if of})

    def forget(self, memory: LastUploads, client: int) -> LastUploads:
        return LastUploads({id: old for id, old in memory.by_client.items() if id != client})

    def _keep(
        self, old: dict[int, SoftLabels], new: SoftLabels | None, now: int
    ) -> dict[int, SoftLabels]:
        """What still counts of a client's uploads, by round, the oldest first."""
        first = 0 if self.rounds is None else now - self.rounds + 1
        every = old if new is None else old | {now: new}
        numbers = [number for number in sorted(every) if number >= first]
        return {number: every[number] for number in numbers[-(self.last or len(numbers)) :]}

    def _fade(self, labels: SoftLabels, age: int) -> SoftLabels:
        if not age or self.decay == 1:
            return labels
        votes = np.ones(len(labels)) if labels.weight is None else labels.weight
        return replace(labels, weight=votes * max(self.decay**age, FAINTEST))


def is_of_earlier_round(old: Remembered, r: Round) -> bool:
    """Whether an upload that was kept can be of this run: its round, samples, classes and votes."""
    index, probs, votes = old.labels.index, old.labels.probs, old.labels.weight
    return bool(
        0 <= old.round < r.number
        and index.ndim == 1
        and index.dtype.kind in "iu"
        and ((index >= 0) & (index < len(r.public))).all()
        and probs.shape == (len(index), r.classes)
        and ((probs >= 0) & np.isfinite(probs)).all()
        and (votes is None or votes.shape == index.shape)
        and (votes is None or ((votes > 0) & np.isfinite(votes)).all())
    )
