"""Soft labels down: what the server posts after a round and what each client still has to hear of
it.

Clients keep their own models, and not all take part in every round. A client that returns hears the
`latest` lesson only, or all it `missed`, oldest first; with a delta codec each is told relative to
what that very client has heard before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedsift.codecs import SoftLabelCodec, WireError
from fedsift.types import Link, Round, SoftLabels, Tree

ABSENT = ("latest", "missed")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class SoftLabelDownlink:
    codec: SoftLabelCodec
    absent: str

    def record(self, notes: Tree, labels: SoftLabels, heard_by: Iterable[int], r: Round) -> Tree:
        """The server's notes after a round: a new lesson, and who has heard what."""
        heard = dict(notes.get("heard", {}))
        for client in heard_by:
            heard[str(client)] = self._encode_all(notes, client, r)[1]
        old = notes.get("lessons", {}) if self.absent == "missed" else {}
        lesson = {"index": labels.index, "probs": labels.probs}
        return {"heard": heard, "lessons": old | {str(r.number): lesson}}

    def encode_for(self, notes: Tree, client: int, r: Round) -> bytes:
        """What a client downloads: nothing in the first round, else one message, or one for every
        lesson missed.
        """
        messages = self._encode_all(notes, client, r)[0]
        if self.absent == "latest":
            return b"".join(messages)
        return b"".join(_LENGTH.pack(len(message)) + message for message in messages)

    def decode(self, memory: Tree, download: bytes, r: Round) -> tuple[dict[int, SoftLabels], Tree]:
        """The lessons in a download, by the round they are of, and the memory after them."""
        lessons = {}
        numbers = _due(memory, self.absent, r)
        for number, message in zip(numbers, self._split(download, len(numbers)), strict=True):
            lessons[number], codec_memory = self.codec.decode_stateful(
                message, _link(number, r), memory.get("codec", {})
            )
            memory = {"last": np.array(number), "codec": codec_memory}
        return lessons, memory

    def _encode_all(self, notes: Tree, client: int, r: Round) -> tuple[list[bytes], Tree]:
        memory, messages = notes.get("heard", {}).get(str(client), {}), []
        for number in _due(memory, self.absent, r):
            labels = SoftLabels(**notes["lessons"][str(number)])
            message, codec_memory = self.codec.encode_stateful(
                labels, _link(number, r), memory.get("codec", {})
            )
            messages.append(message)
            memory = {"last": np.array(number), "codec": codec_memory}
        return messages, memory

    def _split(self, download: bytes, count: int) -> Iterator[bytes]:
        if self.absent == "latest":
            if bool(download) != bool(count):
                raise WireError(
                    f"a download of {len(download)} bytes where {count} lessons were due"
                )
            yield from [download] * count
            return
        for _ in range(count):
            if len(download) < _LENGTH.size or len(download) < (
                end := _LENGTH.size + _LENGTH.unpack_from(download)[0]
            ):
                raise WireError("truncated download: a missed lesson is cut short")
            yield download[_LENGTH.size : end]
            download = download[end:]
        if download:
            raise WireError(f"{len(download)} bytes after the last lesson")


def _due(memory: Tree, absent: str, r: Round) -> list[int]:
    """The rounds whose lessons a client is told now. Every round before this one has posted one."""
    first = int(memory.get("last", -1)) + 1 if absent == "missed" else r.number - 1
    return list(range(max(0, first), r.number))


def _link(number: int, r: Round) -> Link:
    """What both ends know of a lesson: its round's shared draw may be its indexes."""
    return Link(r.number, len(r.public), r.classes, ((r.seed, number, "pick"),))
