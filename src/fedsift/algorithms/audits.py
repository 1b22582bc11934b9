"""Audit rows: the server asks everybody about rows that clients have sent in earlier rounds.

In every round after the first all clients of the cohort are asked about the same few samples. The
list stands before the download, the answers before the upload: one class for each sample. What is
asked is drawn after the rows were sent, from a secret that only the server has. So a client cannot
know which of its rows will be held against what others say, nor whose rows it is asked about.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedsift import seeding
from fedsift.aggregators.rules import restore_memory
from fedsift.checks import check_whole
from fedsift.codecs import WireError, indexes
from fedsift.types import Array, Round, Server, UserError

MOST = indexes.FEW  # samples: so few are coded exactly, and their code has a known length
SECRET_BYTES = 16
_CHECKSUM = struct.Struct("<I")
# Found once for a round, and gone with the server's state: `Server` compares by identity.
_CHOSEN: WeakKeyDictionary[Server, Array] = WeakKeyDictionary()


def derive_secret(seed: int) -> bytes:
    """The server's secret in a simulation. On a network it is drawn at random (fedsift.flower)."""
    return seeding.digest(seed, "secret of the server")[:SECRET_BYTES]


@dataclass(frozen=True)
class Audits:
    """How many samples are asked about; 0: none, and no byte is spent."""

    size: int = 0

    def __post_init__(self) -> None:
        check_whole("audit", self.size)
        if not 0 <= self.size <= MOST:
            raise UserError(f"audit asks about 0 to {MOST} samples, not {self.size}")

    def is_due(self, r: Round) -> bool:
        return self.size > 0 and r.number > 0

    def choose_rows(self, aggregator: Any, server: Server, r: Round) -> Array:
        """The samples of this round, ascending. A function of the server's memory."""
        if not self.is_due(r):
            return np.zeros(0, np.int64)
        if server not in _CHOSEN:
            _CHOSEN[server] = _choose(self.size, aggregator, server, r)
        return _CHOSEN[server]

    def encode_rows(self, rows: Array, r: Round) -> bytes:
        """What stands before a download: their number, their code and a checksum."""
        if not self.is_due(r):
            return b""
        listed = bytes([len(rows)]) + indexes.encode(rows, len(r.public))
        return listed + _CHECKSUM.pack(_find_checksum(listed, r))

    def split_download(self, download: bytes, r: Round) -> tuple[Array, bytes]:
        """The samples asked about, and the rest of the download."""
        if not self.is_due(r):
            return np.zeros(0, np.int64), download
        count = download[0] if download else 0
        if count > min(self.size, len(r.public)):
            raise WireError(f"{count} samples to audit where {self.size} are the most")
        end = 1 + indexes.max_bytes(len(r.public), count)
        listed, after = download[:end], download[end + _CHECKSUM.size :]
        if len(download) < end + _CHECKSUM.size:
            raise WireError("truncated download: the samples to audit are cut short")
        if _CHECKSUM.unpack_from(download, end)[0] != _find_checksum(listed, r):
            raise WireError("the checksum of the samples to audit does not match")
        return indexes.decode(listed[1:], len(r.public), count), after


def encode_answers(answers: Array, classes: int) -> bytes:
    """One class for each sample asked about, as one number in base C."""
    number = 0
    for answer in answers.tolist():
        number = number * classes + answer
    return number.to_bytes(_count_bytes(len(answers), classes), "little")


def split_answers(upload: bytes, count: int, classes: int) -> tuple[Array, bytes, bytes]:
    """The answers, the bytes they stand in, and the rest of the upload."""
    end = _count_bytes(count, classes)
    if len(upload) < end:
        raise WireError("truncated upload: the answers to the audit are cut short")
    number, answers = int.from_bytes(upload[:end], "little"), np.zeros(count, np.int64)
    if number >= classes**count:
        raise WireError("the answers to the audit name no classes")
    for place in range(count - 1, -1, -1):
        number, answers[place] = divmod(number, classes)
    return answers, upload[:end], upload[end:]


def _count_bytes(count: int, classes: int) -> int:
    return ((classes**count - 1).bit_length() + 7) // 8


def _find_checksum(listed: bytes, r: Round) -> int:
    return zlib.crc32(struct.pack("<II", r.number, len(r.public)) + listed)


def _choose(size: int, aggregator: Any, server: Server, r: Round) -> Array:
    generator = seeding.rng((server.memory.secret or b"").hex(), r.number, "audit")
    memory = restore_memory(aggregator, server.memory.aggregator)
    rows: Array = aggregator.choose_audit(memory, size, generator, r)
    return rows
