"""Who sent how many bytes. Messages are bytes, so the ledger is `len()` and cannot lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class RoundBytes:
    """One round: bytes up and down per client, and downlink cost if one broadcast reaches all."""

    round: int
    up: dict[int, int]
    down: dict[int, int]
    broadcast: int
    edges: dict[str, int] | None = (
        None  # "3>5": bytes from client 3 to client 5, where there is no server
    )
    missing: dict[int, str] = field(
        default_factory=dict
    )  # clients of the cohort that did not answer, and why
    # between edge servers and the server, by edge, where there are any
    edge_up: dict[int, int] | None = None
    edge_down: dict[int, int] | None = None

    @classmethod
    def count(
        cls,
        round: int,
        uploads: Mapping[int, bytes],
        downloads: Mapping[int, bytes],
        receivers: Mapping[int, Sequence[int]] | None = None,
        missing: Mapping[int, str] | None = None,
    ) -> RoundBytes:
        """A broadcast sends each distinct message once. `receivers`: messages between clients."""
        if receivers is not None:
            return cls._between_peers(round, uploads, receivers)
        return cls(
            round,
            {client: len(message) for client, message in uploads.items()},
            {client: len(message) for client, message in downloads.items()},
            sum(len(message) for message in set(downloads.values())),
            missing=dict(missing or {}),
        )

    def over_edges(
        self, up: Mapping[int, int], downloads: Mapping[int, bytes], edges: Mapping[int, int]
    ) -> RoundBytes:
        """The round with what travels between edge servers and the server. `edges`: by client.

        Each distinct download goes to an edge once, which hands it on.
        """
        passed: dict[int, set[bytes]] = {}
        for client, message in downloads.items():
            passed.setdefault(edges[client], set()).add(message)
        down = {edge: sum(map(len, messages)) for edge, messages in sorted(passed.items())}
        return replace(self, edge_up=dict(up), edge_down=down)

    @classmethod
    def _between_peers(
        cls, round: int, uploads: Mapping[int, bytes], receivers: Mapping[int, Sequence[int]]
    ) -> RoundBytes:
        """Up: a copy per receiver. Down: arrivals. A broadcast reaches all neighbours at once."""
        edges = {(a, b): len(message) for a, message in uploads.items() for b in receivers[a]}
        up = {
            client: sum(size for (a, _), size in edges.items() if a == client) for client in uploads
        }
        down = {
            client: sum(size for (_, b), size in edges.items() if b == client) for client in uploads
        }
        return cls(
            round,
            up,
            down,
            sum(map(len, uploads.values())),
            {f"{a}>{b}": size for (a, b), size in edges.items()},
        )

    def without(self, missing: Mapping[int, str]) -> RoundBytes:
        """The round if these clients' messages had not come; each with the reason."""
        if not missing:
            return self
        gone = {pair: size for pair, size in (self.edges or {}).items() if _sender(pair) in missing}
        lengths = {_sender(pair): size for pair, size in gone.items()}
        arrived = {
            client: size - sum(gone.get(f"{other}>{client}", 0) for other in missing)
            for client, size in self.down.items()
        }
        left = (
            None if self.edges is None else {p: s for p, s in self.edges.items() if p not in gone}
        )
        return replace(
            self,
            up={client: size for client, size in self.up.items() if client not in missing},
            down=arrived,
            broadcast=self.broadcast - sum(lengths.values()),
            edges=left,
            missing=self.missing | dict(missing),
        )

    @property
    def uplink(self) -> int:
        return sum(self.up.values())

    @property
    def downlink(self) -> int:
        return sum(self.down.values())

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"round": self.round, "up": self.up, "down": self.down}
        row["broadcast"] = self.broadcast
        ways = {"edges": self.edges, "edge_up": self.edge_up, "edge_down": self.edge_down}
        row |= {name: sizes for name, sizes in ways.items() if sizes is not None}
        return row | ({"missing": self.missing} if self.missing else {})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RoundBytes:
        found = {
            way: {int(id): size for id, size in row[way].items()}
            for way in ("up", "down", "edge_up", "edge_down")
            if way in row
        }
        missing = {int(client): why for client, why in row.get("missing", {}).items()}
        return cls(
            row["round"],
            broadcast=row["broadcast"],
            edges=row.get("edges"),
            missing=missing,
            **found,
        )


def _sender(pair: str) -> int:
    return int(pair.partition(">")[0])


@dataclass(frozen=True)
class Totals:
    uplink: int
    downlink: int
    broadcast: int
    edge_up: int | None = None  # between edge servers and the server, where there are any
    edge_down: int | None = None


def total(rounds: Iterable[RoundBytes]) -> Totals:
    rows = list(rounds)
    hops = [(r.edge_up, r.edge_down) for r in rows if r.edge_up is not None]
    edges = [sum(sum((way or {}).values()) for way in ways) for ways in zip(*hops, strict=True)]
    return Totals(
        sum(r.uplink for r in rows),
        sum(r.downlink for r in rows),
        sum(r.broadcast for r in rows),
        *edges,
    )


def upload_sizes(rounds: Iterable[RoundBytes]) -> list[int]:
    """The bytes of every upload."""
    return [size for row in rounds for size in row.up.values()]


def download_sizes(rounds: Iterable[RoundBytes]) -> list[int]:
    """The bytes that every client received in each of its rounds."""
    return [size for row in rounds for size in row.down.values()]


def per_client(rounds: Iterable[RoundBytes]) -> dict[int, tuple[int, int]]:
    """Client -> (bytes up, bytes down) over all rounds."""
    totals: dict[int, tuple[int, int]] = {}
    for row in rounds:
        for client in sorted(row.up.keys() | row.down.keys()):
            up, down = totals.get(client, (0, 0))
            totals[client] = up + row.up.get(client, 0), down + row.down.get(client, 0)
    return dict(sorted(totals.items()))
