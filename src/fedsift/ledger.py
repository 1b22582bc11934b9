"""Who sent how many bytes. Messages are bytes, so the ledger is `len()` and cannot lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RoundBytes:
    """One round: bytes up and down per client, and what the downlink costs where one broadcast reaches all."""

    round: int
    up: dict[int, int]
    down: dict[int, int]
    broadcast: int

    @classmethod
    def count(cls, round: int, said: Mapping[int, bytes], heard: Mapping[int, bytes]) -> RoundBytes:
        """A broadcast sends each distinct message once."""
        return cls(
            round,
            {client: len(message) for client, message in said.items()},
            {client: len(message) for client, message in heard.items()},
            sum(len(message) for message in set(heard.values())),
        )

    @property
    def uplink(self) -> int:
        return sum(self.up.values())

    @property
    def downlink(self) -> int:
        return sum(self.down.values())

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "up": self.up, "down": self.down, "broadcast": self.broadcast}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RoundBytes:
        up, down = ({int(client): size for client, size in row[way].items()} for way in ("up", "down"))
        return cls(row["round"], up, down, row["broadcast"])


@dataclass(frozen=True)
class Totals:
    uplink: int
    downlink: int
    broadcast: int


def total(rounds: Iterable[RoundBytes]) -> Totals:
    rows = list(rounds)
    return Totals(sum(r.uplink for r in rows), sum(r.downlink for r in rows), sum(r.broadcast for r in rows))


def per_client(rounds: Iterable[RoundBytes]) -> dict[int, tuple[int, int]]:
    """Client -> (bytes up, bytes down) over all rounds."""
    totals: dict[int, tuple[int, int]] = {}
    for row in rounds:
        for client in sorted(row.up.keys() | row.down.keys()):
            up, down = totals.get(client, (0, 0))
            totals[client] = up + row.up.get(client, 0), down + row.down.get(client, 0)
    return dict(sorted(totals.items()))
