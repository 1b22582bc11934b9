"""A memory of what clients uploaded in earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedsift.aggregators.rules import Aggregator, Uploads, resolve_inner
from fedsift.checks import check_number, check_whole
from fedsift.types import Round, SoftLabels, UserError


@dataclass(frozen=True, eq=False)
class Remembered:
    """A client's last upload, and the round it is of."""

    round: int
    labels: SoftLabels


@dataclass(frozen=True, eq=False)
class LastUploads:
    by_client: dict[int, Remembered] = field(default_factory=dict)


class LabelMemory:
    """Every client's last upload still counts: `rounds` rounds long, decay^age of a vote each.

    inner: the rule for the votes, e.g. "mean" or "era(0.1)"
    rounds: how many rounds an upload counts, the one it came in included (None: for ever)
    decay: what a vote counts after one more round

    Compare FedCDA (Wang et al. 2024), which keeps weights. Here it costs no bytes.
    """

    memory_type: ClassVar[type] = LastUploads

    def __init__(
        self, inner: str | Aggregator = "mean", rounds: int | None = 4, decay: float = 0.7
    ) -> None:
        if rounds is not None:
            check_whole("rounds", rounds)
        check_number("decay", decay)
        if (rounds is not None and rounds < 1) or not 0 < decay <= 1:
            raise UserError(
                f"memory takes at least 1 round and a decay above 0 up to 1, not {rounds} and"
                f" {decay}"
            )
        self.inner = resolve_inner("memory", inner)
        self.rounds, self.decay = rounds, decay

    def aggregate(
        self, uploads: Uploads, memory: LastUploads, r: Round
    ) -> tuple[SoftLabels, LastUploads]:
        for client, old in memory.by_client.items():  # it may come from a run folder
            if not is_of_earlier_round(old, r):
                raise UserError(
                    f"the memory of client {client}'s upload does not fit this run: it is damaged"
                )
        kept = memory.by_client | {client: Remembered(r.number, u) for client, u in uploads}
        if self.rounds is not None:
            first = r.number - self.rounds + 1
            kept = {client: old for client, old in kept.items() if old.round >= first}
        faded = ((client, self._fade(kept[client], r.number)) for client in sorted(kept))
        return self.inner(faded, len(r.public), r.classes), LastUploads(kept)

    def forget(self, memory: LastUploads, client: int) -> LastUploads:
        return LastUploads({id: old for id, old in memory.by_client.items() if id != client})

    def _fade(self, old: Remembered, now: int) -> SoftLabels:
        age, labels = now - old.round, old.labels
        if not age or self.decay == 1:
            return labels
        votes = np.ones(len(labels)) if labels.weight is None else labels.weight
        return replace(labels, weight=votes * self.decay**age)


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
