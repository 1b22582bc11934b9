"""Keys of nodes come and go: registered with the SuperLink, seated in the table, let in by the
proxy; without a new certificate authority.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedsift import files
from fedsift.flower import proxy, seats
from fedsift.flower.keys import PublicKey
from fedsift.flower.seats import Seat, Table
from fedsift.flower.superlink import NAME
from fedsift.types import UserError

GONE = "unregistered"


class Link(Protocol):
    """A SuperLink, driven with Flower's command line."""

    def flwr(self, *arguments: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Register:
    """The nodes of a deployment: `folder` has the certificates, the table and the proxy's keys."""

    folder: Path
    link: Link

    @property
    def path(self) -> Path:
        return self.folder / seats.TABLE

    def admit(self, client: int, key: PublicKey) -> Table:
        """Give a client's seat to this key; the key that had it is revoked."""
        with self._lock():
            table = seats.read_table(self.path)
            _check_new(table, client, key)
            old = table.of_client(client)
            if old and old.key == key:
                return table
            table = table.seat(Seat(client, self._register(key), key))
            self._write(table)
            if old:
                self._unregister(old)
            return table

    def revoke(self, client: int) -> Table:
        """Take a client's seat away; its key never comes back."""
        with self._lock():
            table = seats.read_table(self.path)
            old = table.of_client(client)
            if old is None:
                raise UserError(f"client {client} has no key in {self.path}")
            table = table.unseat(client)
            self._write(table)  # first: from now on it has no seat, whatever the SuperLink says
            self._unregister(old)
            return table

    def register_again(self) -> Table:
        """Give every key in the table to a SuperLink that has lost its database."""
        with self._lock():
            table, known = seats.read_table(self.path), self.list_nodes()
            for seat in table.seats:
                if seat.node not in known:
                    table = table.seat(replace(seat, node=self._register(seat.key)))
                    self._write(table)
            return table

    def list_nodes(self) -> dict[int, str]:
        """The nodes that the SuperLink knows, with their status: registered, online or offline."""
        answer = self.link.flwr("supernode", "list", NAME, "--format", "json")
        nodes = {int(row["node-id"]): str(row["status"]) for row in answer["nodes"]}
        return {node: status for node, status in nodes.items() if status != GONE}

    def _register(self, key: PublicKey) -> int:
        with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
            file.write(f"{key.text}\n")
            file.flush()
            words = ["supernode", "register", file.name, NAME, "--format", "json"]
            return int(self.link.flwr(*words)["node-id"])

    def _unregister(self, seat: Seat) -> None:
        if seat.node in self.list_nodes():
            words = ["supernode", "unregister", str(seat.node), NAME, "--format", "json"]
            self.link.flwr(*words)

    def _write(self, table: Table) -> None:
        seats.write_table(self.path, table)
        proxy.write_keys(self.folder, [seat.key for seat in table.seats])

    def _lock(self) -> files.Lock:
        path = self.folder / f".{seats.TABLE}.lock"
        return files.Lock(path, f"another command is changing {self.path}")


def _check_new(table: Table, client: int, key: PublicKey) -> None:
    if not 0 <= client < seats.MOST:
        raise UserError(f"there is no client {client}; clients count from 0")
    if key.fingerprint in table.revoked:
        raise UserError(
            f"the key {key.fingerprint} was revoked; make a new one at the node with:"
            " fedsift flower key FILE"
        )
    seat = table.of_key(key)
    if seat and seat.client != client:
        raise UserError(f"this is the key of client {seat.client}; every node needs its own")
