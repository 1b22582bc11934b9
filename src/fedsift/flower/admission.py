"""Keys of nodes come and go: registered with the SuperLink, seated in the table, let in by the
proxy; without a new certificate authority.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedsift import files
from fedsift.flower import proxy, seats
from fedsift.flower.keys import PublicKey
from fedsift.flower.seats import Seat, Table
from fedsift.flower.superlink import NAME
from fedsift.types import UserError

NEW, GONE = "registered", "unregistered"  # what Flower says of a node; NEW: it never came
IN_USE = "already in use"  # and of a key that it has had


class Link(Protocol):
    """A SuperLink, driven with Flower's command line."""

    def flwr(self, *arguments: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Register:
    """The nodes of a deployment: `folder` has the certificates, the table and the proxy's keys."""

    folder: Path
    link: Link
    reload: Callable[[Path], object] = proxy.reload  # the proxy reads the keys again

    @property
    def path(self) -> Path:
        return self.folder / seats.TABLE

    def admit(self, client: int, key: PublicKey) -> Table:
        """Give a client's seat to this key; the key that had it is revoked."""
        with self._lock():
            table = seats.read_table(self.path)
            _check_new(table, client, key)
            old = table.of_client(client)
            if old is None or old.key != key:
                table = table.seat(Seat(client, self._register(key, table), key))
            return self._settle(table)

    def revoke(self, client: int) -> Table:
        """Take a client's seat away; its key never comes back."""
        with self._lock():
            table = seats.read_table(self.path)
            is_known = table.of_client(client) is not None or bool(table.leaving)
            table = self._settle(table.unseat(client))
            if not is_known:
                raise UserError(f"client {client} has no key in {self.path}")
            return table

    def register_again(self) -> Table:
        """Give every key in the table to a SuperLink that has lost its database."""
        with self._lock():
            table, known = seats.read_table(self.path), self.list_nodes()
            for seat in table.seats:
                if seat.node not in known:
                    table = table.seat(replace(seat, node=self._register(seat.key, table)))
                    seats.write_table(self.path, table)
            return self._settle(table)

    def list_nodes(self) -> dict[int, str]:
        """The nodes that the SuperLink knows, with their status: registered, online or offline."""
        answer = self.link.flwr("supernode", "list", NAME, "--format", "json")
        nodes = {int(row["node-id"]): str(row["status"]) for row in answer["nodes"]}
        return {node: status for node, status in nodes.items() if status != GONE}

    def _settle(self, table: Table) -> Table:
        """Do what the table says, the lock that is nearest to the door first.

        Every command does all of it, so it also finishes what an earlier one could not.
        """
        seats.write_table(self.path, table)
        proxy.write_keys(self.folder, [seat.key for seat in table.seats])
        self.reload(self.folder)
        if not table.leaving:
            return table
        try:
            for node in self.list_nodes().keys() & set(table.leaving):
                self.link.flwr("supernode", "unregister", str(node), NAME, "--format", "json")
        except UserError as error:
            raise UserError(
                f"{error}; the old key is revoked here, but the SuperLink does not know yet: give"
                " the same command again when it answers"
            ) from None
        table = replace(table, leaving=())
        seats.write_table(self.path, table)
        return table

    def _register(self, key: PublicKey, table: Table) -> int:
        with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
            file.write(f"{key.text}\n")
            file.flush()
            words = ["supernode", "register", file.name, NAME, "--format", "json"]
            try:
                return int(self.link.flwr(*words)["node-id"])
            except UserError as error:
                if IN_USE not in str(error):
                    raise
            return self._find_node(key, table)

    def _find_node(self, key: PublicKey, table: Table) -> int:
        """The node of a key that was registered by a command that was stopped before it wrote.

        Flower does not say which key a node has. A node that nobody let in has never come. Were it
        that of another key, the seat would be nobody's: the proxy lets this key in, and the
        SuperLink takes no other key for the node.
        """
        taken = {*table.leaving, *(seat.node for seat in table.seats)}
        free = [n for n, status in self.list_nodes().items() if status == NEW and n not in taken]
        if len(free) == 1:
            return free[0]
        raise UserError(
            f"the SuperLink has had the key {key.fingerprint} before, and does not say as which"
            " node; make a new one at the node with: fedsift flower key FILE; nodes without a"
            f" client are listed by: fedsift flower nodes {self.folder}"
        )

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
