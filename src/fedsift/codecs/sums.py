"""Partial sums of votes as bytes: what an edge server sends up, without any rounding.

All numbers of a block are whole ticks of 2^-64, in as few bytes as its longest needs: bytes that
are zero in all of them, at either end, are left out. Sums of hard labels take a byte or two each.
"""

from __future__ import annotations

import struct

import numpy as np

from fedsift.codecs import indexes, wire
from fedsift.codecs.wire import WireError
from fedsift.types import Array, LabelSums, Link, UserError

ID = 1  # its number in the header, among messages of this kind
_HEAD = struct.Struct("<II")  # rows, bytes of their set code
_RANGE = struct.Struct("<BB")  # of a block: the first byte that is sent, and the end
_LOW, _WIDE = 4, 12  # bytes of a number: those below 2^-32, and all of them
_TICK = 2.0**32
_LARGEST = 2.0**53  # ticks of 2^-32, and more than any sum has
_OFF = 0.011  # of a vote: how far a row may be from a distribution, a little more than in uploads


class ExactSums:
    """The sums themselves: nothing is lost."""

    def encode(self, sums: LabelSums, link: Link) -> bytes:
        code = indexes.encode(sums.index, link.samples)
        payload = _HEAD.pack(len(sums), len(code)) + code
        payload += _pack(sums.high[:, -1:], sums.low[:, -1:])
        payload += _pack(sums.high[:, :-1], sums.low[:, :-1])
        return wire.seal(wire.SUMS, ID, link.round, payload, _implied(sums.index, link))

    def decode(self, message: bytes, link: Link) -> LabelSums:
        limit = self.max_bytes(link.samples, link.classes)
        payload = wire.unseal(message, wire.SUMS, ID, link.round, limit)
        if len(payload) < _HEAD.size:
            raise WireError("truncated message: no room for the number of rows")
        rows, length = _HEAD.unpack_from(payload)
        end = _HEAD.size + length
        if rows > link.samples or len(payload) < end:
            raise WireError(f"{rows} rows of {link.samples}, or their indexes are cut short")
        index = indexes.decode(payload[_HEAD.size : end], link.samples, rows)
        wire.verify(message, _implied(index, link))
        votes, rest = _unpack(payload[end:], rows, 1)
        values, rest = _unpack(rest, rows, link.classes)
        if rest:
            raise WireError(f"{len(rest)} bytes after the last sum")
        high, low = (np.concatenate(both, 1) for both in zip(values, votes, strict=True))
        _check(high + low / _TICK, link)
        return LabelSums(index, high, low)

    def max_bytes(self, samples: int, classes: int) -> int:
        numbers = samples * (classes + 1)
        return _HEAD.size + samples // 8 + 64 + 2 * _RANGE.size + _WIDE * numbers


def _check(sums: Array, link: Link) -> None:
    """Votes within their bound, and labels that are distributions. `sums` are ticks of 2^-32."""
    labels, votes = sums[:, :-1], sums[:, -1]
    if (sums >= _LARGEST).any() or (votes > link.votes * _TICK).any():
        raise WireError(f"sums of more than {link.votes:g} votes")
    # Each number of an upload is rounded by half a tick of 2^-64, which faint votes feel. An upload
    # that counts has a tick or more, and there are no more of them than votes.
    rounded = np.minimum(link.votes / _TICK, votes) / 2
    uneven = np.abs(labels.sum(1) - votes) > _OFF * votes + (link.classes + 1) * rounded
    beyond = labels.max(1) > (1 + _OFF) * votes + 2 * rounded
    if (votes <= 0).any() or uneven.any() or beyond.any():
        raise WireError("sums that are not of probabilities")


def _pack(high: Array, low: Array) -> bytes:
    """A block of numbers. Ticks of 2^-32 in `low` beyond one are carried over."""
    if (high < 0).any() or (high >= _LARGEST).any():
        raise UserError("sums of more votes than can be counted; use more edge servers")
    carry = np.floor(low / _TICK)
    small = (low - carry * _TICK).astype("<u4").reshape(-1, 1)
    large = (high + carry).astype("<u8").reshape(-1, 1)
    digits = np.concatenate([small.view(np.uint8), large.view(np.uint8)], 1)
    used = np.flatnonzero(digits.any(0))
    first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    return _RANGE.pack(first, end) + np.ascontiguousarray(digits[:, first:end]).tobytes()


def _unpack(code: bytes, rows: int, columns: int) -> tuple[tuple[Array, Array], bytes]:
    """The numbers of a block, large and small ticks, and the bytes after it."""
    if len(code) < _RANGE.size:
        raise WireError("truncated message: the sums are cut short")
    first, end = _RANGE.unpack_from(code)
    size = rows * columns * (end - first)
    if not first <= end <= _WIDE or len(code) < _RANGE.size + size:
        raise WireError("truncated message: the sums are cut short")
    digits = np.zeros((rows * columns, _WIDE), np.uint8)
    sent = np.frombuffer(code, np.uint8, size, _RANGE.size)
    digits[:, first:end] = sent.reshape(len(digits), end - first)
    small = np.ascontiguousarray(digits[:, :_LOW]).view("<u4")
    large = np.ascontiguousarray(digits[:, _LOW:]).view("<u8")
    both = (large, small)
    high, low = (part.astype(np.float64).reshape(rows, columns) for part in both)
    return (high, low), code[_RANGE.size + size :]


def _implied(index: Array, link: Link) -> bytes:
    return struct.pack("<II", link.samples, link.classes) + index.astype("<u4").tobytes()
