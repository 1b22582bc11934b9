"""Soft labels as bytes: which samples (nothing if both ends can derive it, else a set code) and
their values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from fedsift import seeding
from fedsift.codecs import indexes, wire
from fedsift.codecs.values import Delta, Values
from fedsift.codecs.wire import WireError
from fedsift.types import Array, Link, SoftLabels, Tree, UserError

_PREFIX = struct.Struct("<BI")  # how the indexes are given, how many rows
_LENGTH = struct.Struct("<I")  # bytes of the set code, when there is one
_CODED = 255  # otherwise: the position in `link.drawn_from` of the seed that gives the indexes


@dataclass(frozen=True)
class SoftLabelCodec:
    """Indexes + values; `encode` and `decode` are the two halves of one agreement.

    A codec that sends only changes needs a memory at both ends: `say` and `hear` take it and return
    it. It is under the checksum, so a message is never read against another reference than the one
    it was written against.
    """

    values: Values

    @property
    def keeps_reference(self) -> bool:
        return isinstance(self.values, Delta)

    def encode(self, labels: SoftLabels, link: Link, reference: SoftLabels | None = None) -> bytes:
        if not np.isfinite(labels.probs).all():
            raise UserError(
                "soft labels are not finite: training diverged; lower the learning rate (local.lr)"
            )
        mode = _find_seed(labels.index, link)
        prefix = _PREFIX.pack(mode, len(labels))
        if mode == _CODED:
            code = indexes.encode(labels.index, link.samples)
            prefix += _LENGTH.pack(len(code)) + code
        known = self._known(labels.index, link, reference)
        payload = prefix + self.values.pack(labels.probs, known)
        return wire.seal(
            wire.SOFT_LABELS,
            self.values.id,
            link.round,
            payload,
            _implied(labels.index, link, known),
        )

    def decode(self, message: bytes, link: Link, reference: SoftLabels | None = None) -> SoftLabels:
        limit = (
            _PREFIX.size
            + _LENGTH.size
            + link.samples // 8
            + 64
            + self.values.max_bytes(link.samples, link.classes)
        )
        payload = wire.unseal(message, wire.SOFT_LABELS, self.values.id, link.round, limit)
        if len(payload) < _PREFIX.size:
            raise WireError("truncated message: no room for the number of rows")
        mode, rows = _PREFIX.unpack_from(payload)
        if rows > link.samples:
            raise WireError(f"{rows} soft labels for a public set of {link.samples}")
        index, rest = self._indexes(payload[_PREFIX.size :], mode, rows, link)
        known = self._known(index, link, reference)
        wire.verify(message, _implied(index, link, known))
        return SoftLabels(index, self.values.unpack(rest, rows, link.classes, known))

    def encode_stateful(self, labels: SoftLabels, link: Link, memory: Tree) -> tuple[bytes, Tree]:
        """Encode against what was said before; the message, and what the other end holds once it
        has read it.
        """
        message = self.encode(labels, link, _recalled(memory))
        return message, self.decode_stateful(message, link, memory)[1]

    def decode_stateful(self, message: bytes, link: Link, memory: Tree) -> tuple[SoftLabels, Tree]:
        """Decode against what was heard before; the labels, and the memory to keep for the next
        message.
        """
        reference = _recalled(memory)
        labels = self.decode(message, link, reference)
        if not self.keeps_reference:
            return labels, {}
        joint = labels if reference is None else _merged(reference, labels)
        return labels, {"index": joint.index, "probs": joint.probs}

    def _known(self, index: Array, link: Link, reference: SoftLabels | None) -> Array | None:
        """The reference's rows for these samples, nan where it has none."""
        if not self.keeps_reference:
            return None
        rows = np.full((link.samples, link.classes), np.nan, np.float32)
        if reference is not None:
            rows[reference.index] = reference.probs
        return rows[index]

    def _indexes(self, rest: bytes, mode: int, rows: int, link: Link) -> tuple[Array, bytes]:
        if mode < len(link.drawn_from):
            return seeding.subset(seeding.rng(*link.drawn_from[mode]), link.samples, rows), rest
        if mode != _CODED:
            raise WireError(f"indexes given in unknown way {mode}")
        if len(rest) < _LENGTH.size:
            raise WireError("truncated message: no room for the indexes")
        end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        if len(rest) < end:
            raise WireError("truncated message: the indexes are cut short")
        return indexes.decode(rest[_LENGTH.size : end], link.samples, rows), rest[end:]


def _recalled(memory: Tree) -> SoftLabels | None:
    return SoftLabels(**memory) if memory else None


def _merged(old: SoftLabels, new: SoftLabels) -> SoftLabels:
    """The latest row of every sample that was ever sent."""
    index = np.union1d(old.index, new.index)
    probs = np.empty((len(index), new.probs.shape[1]), np.float32)
    probs[np.searchsorted(index, old.index)] = old.probs
    probs[np.searchsorted(index, new.index)] = new.probs
    return SoftLabels(index, probs)


def _find_seed(index: Array, link: Link) -> int:
    """Which seed both ends know draws exactly these indexes, if any."""
    for position, names in enumerate(link.drawn_from):
        if np.array_equal(index, seeding.subset(seeding.rng(*names), link.samples, len(index))):
            return position
    return _CODED


def _implied(index: Array, link: Link, known: Array | None) -> bytes:
    """What both ends must agree on without its being sent: public set size, classes, indexes,
    reference.
    """
    reference = b"" if known is None else known.tobytes()
    return (
        struct.pack("<II", link.samples, link.classes) + index.astype("<u4").tobytes() + reference
    )
