"""The envelope of every message: a 13-byte header with checksum. Input is treated as hostile."""

from __future__ import annotations

import struct
import zlib

VERSION = 1
SOFT_LABELS, WEIGHTS, MIXTURES, ESTIMATES, SUMS = 1, 2, 3, 4, 5  # kinds

_HEADER = struct.Struct("<2sBBBII")  # magic, version, kind, codec, round, checksum
_MAGIC = b"fs"
HEADER_BYTES = _HEADER.size
LONGEST = 500  # characters of a text that a stranger may have written


def one_line(text: str) -> str:
    """Fit for a log in which every line is one of ours."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:LONGEST])


class WireError(ValueError):
    """A message that cannot be what it claims to be; the text says why.

    It may quote the message, so it is one line of bounded length whoever raises it.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__(one_line(why))


def seal(kind: int, codec: int, round: int, payload: bytes, implied: bytes = b"") -> bytes:
    """Header + payload. `implied`, derived by the receiver, is not sent but is in the checksum."""
    return (
        _HEADER.pack(
            _MAGIC, VERSION, kind, codec, round, _checksum(kind, codec, round, payload, implied)
        )
        + payload
    )


def unseal(message: bytes, kind: int, codec: int, round: int, limit: int) -> bytes:
    """The payload, once the header says what it should. Call `verify` when `implied` is known."""
    if len(message) < HEADER_BYTES:
        raise WireError(
            f"truncated message: {len(message)} bytes, a header alone has {HEADER_BYTES}"
        )
    if len(message) > HEADER_BYTES + limit:
        raise WireError(
            f"message of {len(message)} bytes; at most {HEADER_BYTES + limit} can be right here"
        )
    magic, version, found_kind, found_codec, found_round, _ = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise WireError("foreign message: it does not start as a fedsift message does")
    for name, found, expected in (
        ("version", version, VERSION),
        ("kind", found_kind, kind),
        ("codec", found_codec, codec),
        ("round", found_round, round),
    ):
        if found != expected:
            raise WireError(f"message of {name} {found} where {name} {expected} was expected")
    return message[HEADER_BYTES:]


def verify(message: bytes, implied: bytes = b"") -> None:
    _, _, kind, codec, round, checksum = _HEADER.unpack_from(message)
    if _checksum(kind, codec, round, message[HEADER_BYTES:], implied) != checksum:
        raise WireError(
            "checksum does not match: the message was damaged, or the two ends disagree"
        )


def _checksum(kind: int, codec: int, round: int, payload: bytes, implied: bytes) -> int:
    head = struct.pack("<BBBI", VERSION, kind, codec, round)
    return zlib.crc32(implied, zlib.crc32(payload, zlib.crc32(head)))
