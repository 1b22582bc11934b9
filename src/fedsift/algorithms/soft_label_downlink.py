"""Soft labels down: what the server posts after a round, and what each client has not received yet.

Clients keep their own models, and not all take part in every round. A client that returns receives
the `latest` labels only, or all it `missed`, oldest first. With a delta codec each is encoded
against what that very client has received before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fedsift.codecs import SoftLabelCodec, WireError
from fedsift.types import Array, Link, Round, SoftLabels

ABSENT = ("latest", "missed")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class Received:
    """How far one client is: the last round whose labels it has, and a delta codec's reference."""

    last: int = -1
    reference: SoftLabels | None = None


@dataclass(frozen=True, eq=False)
class DownlinkMemory:
    """The server's: the posted labels by round, and how far each client is."""

    posted: dict[int, SoftLabels] = field(default_factory=dict)
    received: dict[int, Received] = field(default_factory=dict)


@dataclass(frozen=True)
class SoftLabelDownlink:
    codec: SoftLabelCodec
    absent: str

    def record(
        self, memory: DownlinkMemory, labels: SoftLabels, receivers: Iterable[int], r: Round
    ) -> DownlinkMemory:
        """The memory after a round: new labels are posted, and `receivers` have the older ones."""
        received = memory.received | {c: self._receive_all(memory, c, r) for c in receivers}
        old = memory.posted if self.absent == "missed" else {}
        return DownlinkMemory(old | {r.number: SoftLabels(labels.index, labels.probs)}, received)

    def encode(self, memory: DownlinkMemory, clients: Iterable[int], r: Round) -> dict[int, bytes]:
        """Each client's download: none in round 0, else one message, or one per round it missed."""
        made: dict[int, bytes] = {}
        return {client: self._encode_for(memory, client, r, made) for client in clients}

    def _encode_for(
        self, memory: DownlinkMemory, client: int, r: Round, made: dict[int, bytes]
    ) -> bytes:
        """Messages without a reference are the same for all: they are `made` once for a round."""
        if self.codec.keeps_reference:
            messages = self._encode_all(memory, client, r)
        else:
            numbers = _due(memory.received.get(client, Received()), self.absent, r)
            for number in numbers:
                if number not in made:
                    made[number] = self.codec.encode(memory.posted[number], _link(number, r))
            messages = [made[number] for number in numbers]
        if self.absent == "latest":
            return b"".join(messages)
        return b"".join(_LENGTH.pack(len(message)) + message for message in messages)

    def decode(
        self, memory: Received, download: bytes, r: Round
    ) -> tuple[dict[int, SoftLabels], Received]:
        """The labels in a download, by the round they are of, and the memory after them."""
        found = {}
        numbers = _due(memory, self.absent, r)
        for number, message in zip(numbers, self._split(download, len(numbers)), strict=True):
            link = _link(number, r)
            found[number], reference = self.codec.decode_stateful(message, link, memory.reference)
            memory = Received(number, reference)
        return found, memory

    def _encode_all(self, memory: DownlinkMemory, client: int, r: Round) -> list[bytes]:
        """Each message is written against what the ones before it lead to."""
        state, messages = memory.received.get(client, Received()), list[bytes]()
        reference, due = state.reference, _due(state, self.absent, r)
        for number in due[:-1]:
            labels, link = memory.posted[number], _link(number, r)
            message, reference = self.codec.encode_stateful(labels, link, reference)
            messages.append(message)
        for number in due[-1:]:
            labels, link = memory.posted[number], _link(number, r)
            messages.append(self.codec.encode(labels, link, reference))
        return messages

    def _receive_all(self, memory: DownlinkMemory, client: int, r: Round) -> Received:
        """How far a client is that has used its download."""
        state = memory.received.get(client, Received())
        for number in _due(state, self.absent, r):
            reference = None
            if self.codec.keeps_reference:
                labels, link = memory.posted[number], _link(number, r)
                _, reference = self.codec.encode_stateful(labels, link, state.reference)
            state = Received(number, reference)
        return state

    def _split(self, download: bytes, count: int) -> Iterator[bytes]:
        if self.absent == "latest":
            if bool(download) != bool(count):
                raise WireError(f"a download of {len(download)} bytes where {count} were due")
            yield from [download] * count
            return
        for _ in range(count):
            if len(download) < _LENGTH.size:
                raise WireError("truncated download: the labels of a missed round are cut short")
            end = _LENGTH.size + _LENGTH.unpack_from(download)[0]
            if len(download) < end:
                raise WireError("truncated download: the labels of a missed round are cut short")
            yield download[_LENGTH.size : end]
            download = download[end:]
        if download:
            raise WireError(f"{len(download)} bytes after the last labels")


def _due(memory: Received, absent: str, r: Round) -> list[int]:
    """The rounds whose labels a client receives now. Every round before this one posted some."""
    first = memory.last + 1 if absent == "missed" else r.number - 1
    return list(range(max(0, first), r.number))


def _link(number: int, r: Round) -> Link:
    """What both ends know of posted labels: the round's shared draw may be their indexes."""
    return Link(r.number, len(r.public), r.classes, ((r.seed, number, "pick"),))


def merge_labels(heard: Iterable[SoftLabels | None]) -> SoftLabels | None:
    """The newest label of every sample, of labels in the order in which they were heard."""
    newest: dict[int, Array] = {}
    for labels in heard:
        if labels is not None:
            newest |= zip(labels.index.tolist(), labels.probs, strict=True)
    if not newest:
        return None
    index = np.array(sorted(newest), np.int64)
    return SoftLabels(index, np.stack([newest[i] for i in index.tolist()]))
