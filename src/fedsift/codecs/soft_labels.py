"""Soft labels as bytes: which samples (nothing if derivable, else a set code) and their values."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from fedsift import seeding
from fedsift.codecs import indexes, wire
from fedsift.codecs.values import Delta, Values
from fedsift.codecs.wire import WireError
from fedsift.numerics import distinct
from fedsift.types import Array, Link, SoftLabels, UserError

PREFIX = struct.Struct("<BI")  # how the indexes are given, how many rows
LENGTH = struct.Struct("<I")  # bytes of the set code, when there is one
CODED = 255  # otherwise: the position in `link.drawn_from` of the seed that gives the indexes
_WEIGHTED = 1 << 31  # added to the number of rows where votes are sent: one float32 per row


@dataclass(frozen=True)
class SoftLabelCodec:
    """Indexes + values; `encode` and `decode` are the two halves of one agreement.

    A codec that sends only changes needs a reference at both ends: `encode_stateful` and
    `decode_stateful` take it and return the next one. It is under the checksum, so a message is
    never read against another reference than the one it was written against.

    Votes (`SoftLabels.weight`) are sent only where a row does not stand for exactly one.
    """

    values: Values  # how rows of probabilities become bytes

    @property
    def keeps_reference(self) -> bool:
        return isinstance(self.values, Delta)

    def encode(self, labels: SoftLabels, link: Link, reference: SoftLabels | None = None) -> bytes:
        if not np.isfinite(labels.probs).all():
            raise UserError(
                "soft labels are not finite: training diverged; lower the learning rate (local.lr)"
            )
        if (np.diff(labels.index) <= 0).any():
            raise UserError("the indexes of soft labels must ascend, each once; sort them")
        mode, votes = _find_seed(labels.index, link), _pack_votes(labels, link)
        prefix = PREFIX.pack(mode, len(labels) | (_WEIGHTED if votes else 0))
        if mode == CODED:
            code = indexes.encode(labels.index, link.samples)
            prefix += LENGTH.pack(len(code)) + code
        known = self._known(labels.index, link, reference)
        payload = prefix + votes + self.values.pack(labels.probs, known)
        implied = _implied(labels.index, link, known)
        return wire.seal(wire.SOFT_LABELS, self.values.id, link.round, payload, implied)

    def decode(self, message: bytes, link: Link, reference: SoftLabels | None = None) -> SoftLabels:
        limit = self._largest_payload(link)
        payload = wire.unseal(message, wire.SOFT_LABELS, self.values.id, link.round, limit)
        if len(payload) < PREFIX.size:
            raise WireError("truncated message: no room for the number of rows")
        mode, rows = PREFIX.unpack_from(payload)
        weighted, rows = bool(rows & _WEIGHTED), rows & ~_WEIGHTED
        if rows > link.samples:
            raise WireError(f"{rows} soft labels for a public set of {link.samples}")
        if not link.fewest <= rows <= _most(link):
            raise WireError(f"{rows} soft labels where the budget is {_most(link)}")
        index, rest = self._indexes(payload[PREFIX.size :], mode, rows, link)
        _check_drawn(index, mode, link)
        known = self._known(index, link, reference)
        wire.verify(message, _implied(index, link, known))
        votes, rest = _unpack_votes(rest, rows, link) if weighted else (None, rest)
        return SoftLabels(index, self.values.unpack(rest, rows, link.classes, known), votes)

    def encode_stateful(
        self, labels: SoftLabels, link: Link, reference: SoftLabels | None
    ) -> tuple[bytes, SoftLabels | None]:
        """The message, and the reference for the next one: what the receiver then holds."""
        message = self.encode(labels, link, reference)
        if not self.keeps_reference:
            return message, None
        return message, self.decode_stateful(message, link, reference)[1]

    def decode_stateful(
        self, message: bytes, link: Link, reference: SoftLabels | None
    ) -> tuple[SoftLabels, SoftLabels | None]:
        """The labels, and the reference for the next message; None where the codec keeps none."""
        labels = self.decode(message, link, reference)
        if not self.keeps_reference:
            return labels, None
        return labels, _merge(reference, labels)

    def _largest_payload(self, link: Link) -> int:
        rows = _most(link)
        indexes_and_votes = LENGTH.size + link.samples // 8 + 64 + 4 * rows
        return PREFIX.size + indexes_and_votes + self.values.max_bytes(rows, link.classes)

    def _known(self, index: Array, link: Link, reference: SoftLabels | None) -> Array | None:
        """The reference's rows for these samples, nan where it has none."""
        if not self.keeps_reference:
            return None
        if reference is not None and np.array_equal(reference.index, index):
            return reference.probs
        rows = np.full((link.samples, link.classes), np.nan, np.float32)
        if reference is not None:
            rows[reference.index] = reference.probs
        return rows[index]

    def _indexes(self, rest: bytes, mode: int, rows: int, link: Link) -> tuple[Array, bytes]:
        if mode < len(link.drawn_from):
            return seeding.subset(seeding.rng(*link.drawn_from[mode]), link.samples, rows), rest
        if mode != CODED:
            raise WireError(f"indexes given in unknown way {mode}")
        if len(rest) < LENGTH.size:
            raise WireError("truncated message: no room for the indexes")
        end = LENGTH.size + LENGTH.unpack_from(rest)[0]
        if len(rest) < end:
            raise WireError("truncated message: the indexes are cut short")
        return indexes.decode(rest[LENGTH.size : end], link.samples, rows), rest[end:]


def _most(link: Link) -> int:
    return link.samples if link.most is None else min(link.most, link.samples)


def _check_drawn(index: Array, mode: int, link: Link) -> None:
    """Where both ends know the samples, no others are taken."""
    if link.drawn is None or mode == link.drawn:
        return
    names = link.drawn_from[link.drawn]
    if not np.array_equal(index, seeding.subset(seeding.rng(*names), link.samples, len(index))):
        raise WireError("soft labels on other samples than those of this round's draw")


def _merge(old: SoftLabels | None, new: SoftLabels) -> SoftLabels:
    """The latest row of every sample that was ever sent."""
    if old is None:
        return SoftLabels(new.index, new.probs)
    if np.array_equal(old.index, new.index):
        return SoftLabels(new.index, new.probs)
    index = distinct(np.concatenate([old.index, new.index]))
    probs = np.empty((len(index), new.probs.shape[1]), np.float32)
    probs[np.searchsorted(index, old.index)] = old.probs
    probs[np.searchsorted(index, new.index)] = new.probs
    return SoftLabels(index, probs)


def _pack_votes(labels: SoftLabels, link: Link) -> bytes:
    """Nothing where every row is one vote."""
    if labels.weight is None or (labels.weight == 1).all():
        return b""
    packed = labels.weight.astype("<f4")
    if not _are_votes(packed, link):
        raise UserError(
            f"a row of soft labels stands for more than 0 and at most {link.votes:g} votes"
        )
    return packed.tobytes()


def _unpack_votes(rest: bytes, rows: int, link: Link) -> tuple[Array, bytes]:
    if len(rest) < 4 * rows:
        raise WireError("truncated message: the votes are cut short")
    votes = np.frombuffer(rest, "<f4", rows)
    if not _are_votes(votes, link):
        raise WireError(f"a row that claims no vote, or more than {link.votes:g}")
    return votes.astype(np.float64), rest[4 * rows :]


def _are_votes(votes: Array, link: Link) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(((votes > 0) & (votes <= link.votes)).all())


def _find_seed(index: Array, link: Link) -> int:
    """Which seed both ends know draws exactly these indexes, if any."""
    for position, names in enumerate(link.drawn_from):
        if np.array_equal(index, seeding.subset(seeding.rng(*names), link.samples, len(index))):
            return position
    return CODED


def _implied(index: Array, link: Link, known: Array | None) -> bytes:
    """What both ends know beside the message: public set size, classes, indexes, reference."""
    reference = b"" if known is None else known.tobytes()
    sizes = struct.pack("<II", link.samples, link.classes)
    return sizes + index.astype("<u4").tobytes() + reference + link.before
