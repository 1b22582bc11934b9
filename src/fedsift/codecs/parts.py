"""Where the bytes of a message go: header, indexes, values, and what stands before them.

Messages are read here for their lengths alone, so nothing is checked: a lie about a length moves
bytes from one part to another, and the sum stays that of the message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fedsift.codecs import wire
from fedsift.codecs.soft_labels import CODED, LENGTH, PREFIX

FIRST = 2**16  # bytes among which the header is looked for: little stands before it
_START = struct.Struct("<2sB")
_ROUND = struct.Struct("<I")
_KIND_AT, _ROUND_AT = 3, 5  # places in a header


@dataclass(frozen=True)
class Parts:
    """Bytes: `others` are answers to an audit and claims of votes."""

    header: int = 0
    indexes: int = 0
    values: int = 0
    others: int = 0

    def __add__(self, more: Parts) -> Parts:
        return Parts(
            self.header + more.header,
            self.indexes + more.indexes,
            self.values + more.values,
            self.others + more.others,
        )

    def __mul__(self, copies: int) -> Parts:
        return Parts(
            copies * self.header,
            copies * self.indexes,
            copies * self.values,
            copies * self.others,
        )


def split_parts(message: bytes, round: int) -> Parts:
    """The parts of one message of a round; without a header of ours, all of it is values."""
    begin = _find_header(message, round)
    if begin is None:
        return Parts(values=len(message))
    header, rest = wire.HEADER_BYTES, len(message) - begin - wire.HEADER_BYTES
    if message[begin + _KIND_AT] != wire.SOFT_LABELS or rest < PREFIX.size:
        return Parts(header, 0, rest, begin)
    mode, _ = PREFIX.unpack_from(message, begin + header)
    header, rest, indexes = header + PREFIX.size, rest - PREFIX.size, 0
    if mode == CODED and rest >= LENGTH.size:
        told = LENGTH.unpack_from(message, begin + header)[0]
        header, rest = header + LENGTH.size, rest - LENGTH.size
        indexes = min(told, rest)
    return Parts(header, indexes, rest - indexes, begin)


def _find_header(message: bytes, round: int) -> int | None:
    """Where the first header stands that names this round, or the one before it (gossip)."""
    begin = -1
    wanted = {_ROUND.pack(number) for number in (round, round - 1) if number >= 0}
    start = _START.pack(b"fs", wire.VERSION)
    while (begin := message.find(start, begin + 1, FIRST)) >= 0:
        if len(message) - begin < wire.HEADER_BYTES:
            return None
        named = message[begin + _ROUND_AT : begin + _ROUND_AT + _ROUND.size]
        if message[begin + _KIND_AT] in range(1, 5) and named in wanted:
            return begin
    return None
