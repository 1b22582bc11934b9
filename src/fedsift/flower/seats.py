"""Which node may be which client: a table on the server, kept by the operator.

A SuperLink gives a registered key a node id, and checks with every request that the sender has the
key. So node ids in the table stand for keys, and a node cannot take another's place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsift.files import write_atomic
from fedsift.flower.keys import PublicKey, parse_public_key, read_foreign
from fedsift.flower.logs import complain
from fedsift.types import UserError

TABLE = "nodes.json"  # in the folder of certificates
FORMAT = 1
LARGEST = 4 << 20  # bytes of the file: some 10,000 nodes
MOST = 1 << 20  # clients
NODE_IDS = 1 << 64
DAMAGED = "it is damaged"


@dataclass(frozen=True)
class Seat:
    client: int
    node: int  # Flower's id of the key
    key: PublicKey


@dataclass(frozen=True)
class Table:
    """Seats by client; and the fingerprints of keys that must not come back."""

    seats: tuple[Seat, ...] = ()
    revoked: tuple[str, ...] = ()
    leaving: tuple[int, ...] = ()  # nodes of revoked keys that the SuperLink may still take

    def of_client(self, client: int) -> Seat | None:
        return next((seat for seat in self.seats if seat.client == client), None)

    def of_key(self, key: PublicKey) -> Seat | None:
        return next((seat for seat in self.seats if seat.key == key), None)

    def find_objection(self, node: int, client: int) -> str | None:
        """Why this node cannot be this client; None if it is."""
        seat = next((seat for seat in self.seats if seat.node == node), None)
        if seat is None:
            return (
                "its key has no seat in the server's table; the operator admits it with:"
                f" fedsift flower admit CERTS {client} KEY.pub"
            )
        if seat.client != client:
            return (
                f"its key belongs to client {seat.client}, but it says that it is client {client};"
                f" start it with partition-id={seat.client}"
            )
        return None

    def seat(self, new: Seat) -> Table:
        """With this seat in the place of the client's old one, whose key is revoked."""
        old = self.of_client(new.client)
        table = self.unseat(new.client) if old and old.key != new.key else self
        others = [seat for seat in table.seats if seat.client != new.client]
        return replace(table, seats=tuple(sorted([*others, new], key=lambda seat: seat.client)))

    def unseat(self, client: int) -> Table:
        """Without the client's seat; its key is revoked."""
        old = self.of_client(client)
        if old is None:
            return self
        seats = tuple(seat for seat in self.seats if seat.client != client)
        revoked = (*self.revoked, old.key.fingerprint)
        return Table(seats, revoked, (*self.leaving, old.node))


@dataclass
class Seats:
    """The table as it stands now. Without one, a node is the client that it says it is."""

    path: Path | None
    table: Table = Table()

    @classmethod
    def open(cls, path: str) -> Seats:
        """Read it for the first time; a run does not begin without it."""
        return cls(Path(path), read_table(Path(path))) if path else cls(None)

    def refresh(self) -> bool:
        """Whether the operator has changed it. Where it cannot be read, the last one holds."""
        if self.path is None:
            return False
        before = self.table
        try:
            self.table = read_table(self.path)
        except UserError as error:
            complain(f"{error}; the table read before still holds")
        return self.table != before

    def list_nodes(self) -> set[int]:
        """Those that have a seat: they keep their ids when they leave and come back."""
        return {seat.node for seat in self.table.seats}

    def find_objection(self, node: int, client: int) -> str | None:
        return None if self.path is None else self.table.find_objection(node, client)


def write_table(path: Path, table: Table) -> None:
    rows = [
        {"client": seat.client, "node": str(seat.node), "key": seat.key.text}
        for seat in table.seats
    ]
    content = {"format": FORMAT, "nodes": rows, "revoked": list(table.revoked)}
    if table.leaving:
        content["leaving"] = [str(node) for node in table.leaving]
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def read_table(path: Path) -> Table:
    """Checked as if a stranger had written it."""
    try:
        content = read_foreign(path, LARGEST)
        return _take_table(_parse(content))
    except (ValueError, UserError) as error:
        raise UserError(f"{path} is not a table of nodes: {error}") from None


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(DAMAGED) from None


def _take_table(content: Any) -> Table:
    if not isinstance(content, dict):
        raise ValueError(DAMAGED)
    content = {"leaving": []} | content
    if content.keys() != {"format", "nodes", "revoked", "leaving"}:
        raise ValueError(DAMAGED)
    if content["format"] != FORMAT:
        raise UserError("it is of another version of fedsift")
    rows, revoked, leaving = content["nodes"], content["revoked"], content["leaving"]
    if not all(isinstance(some, list) for some in (rows, revoked, leaving)):
        raise ValueError(DAMAGED)
    seats = tuple(_take_seat(row) for row in rows)
    if not all(isinstance(text, str) for text in revoked):
        raise ValueError(DAMAGED)
    for name in ("client", "node", "key"):
        if len({getattr(seat, name) for seat in seats}) < len(seats):
            raise UserError(f"it has a {name} twice")
    if found := next((seat for seat in seats if seat.key.fingerprint in revoked), None):
        raise UserError(f"the key of client {found.client} is revoked")
    return Table(seats, tuple(revoked), tuple(_take_node(node) for node in leaving))


def _take_seat(row: Any) -> Seat:
    if not isinstance(row, dict) or row.keys() != {"client", "node", "key"}:
        raise ValueError(DAMAGED)
    client, key = row["client"], row["key"]
    if type(client) is not int or not 0 <= client < MOST:
        raise UserError("it has a client that cannot be")
    if not isinstance(key, str):
        raise UserError("it has a key that cannot be")
    return Seat(client, _take_node(row["node"]), parse_public_key(key))


def _take_node(text: Any) -> int:
    """Flower's id of a node, written as a text: JSON's numbers are not that long everywhere."""
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 20:
        raise UserError("it has a node that cannot be")
    if not 0 < int(text) < NODE_IDS:
        raise UserError("it has a node that cannot be")
    return int(text)
