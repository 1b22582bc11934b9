"""How much a client's word counts on a sample: equally, or by how well it knows the class.

Expertise is w_k(x) = sum_c p_k(c | x) sqrt(n_kc / n_k): the model's probabilities, weighed by the
share of the client's own samples in each class. The client sends it with every row ("expertise"),
or sends its label histogram, from which the server finds it ("histogram"). Either is a claim. The
server scales it to a mean of one vote per row of that client, and no row counts more than `MOST`.
So nobody gains votes by claiming more; a client can only move its votes between its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsift import registry
from fedsift.checks import check_whole
from fedsift.codecs import WireError, entropy
from fedsift.types import Array, SoftLabels, UserError

VOTES = ("equal", "expertise", "histogram")
MOST = 4.0  # votes that one row may stand for
LEAST = 1 / 256  # of the expertise: every row has a vote
_LENGTH = 3  # bytes of the length that stands before claims


@dataclass(frozen=True)
class Votes:
    """Claims stand before the soft labels in an upload; equal votes take no bytes."""

    kind: str = "equal"
    bits: int = 4  # per row, where expertise is sent

    def __post_init__(self) -> None:
        registry.lookup(dict.fromkeys(VOTES), "votes", self.kind, " or ".join(VOTES))
        check_whole("vote_bits", self.bits)
        if not 4 <= self.bits <= 8:
            raise UserError(f"vote_bits must be 4 to 8, not {self.bits}")

    def encode(self, probs: Array, label_counts: Array) -> bytes:
        """The claims of a client: `probs` [m, C] are its rows, `label_counts` [C] its samples."""
        if self.kind == "equal" or not np.isfinite(probs).all():
            return b""  # the codec of soft labels refuses those that are not finite
        if self.kind == "histogram":  # rounded up: a class it has is never 0
            return bytes(np.ceil(label_counts * (255 / label_counts.max())).astype(np.uint8))
        expertise = find_expertise(probs, label_counts)
        levels = 2**self.bits
        most = max(float(expertise.max()), LEAST)
        claims = np.clip(np.rint(expertise * (levels / most)), 1, levels)
        code = entropy.encode(claims.astype(np.int64) - 1, levels)
        return len(code).to_bytes(_LENGTH, "little") + code

    def split(self, upload: bytes, classes: int, most: int) -> tuple[bytes, bytes]:
        """The claims and the message after them, which has `most` rows or fewer."""
        if self.kind == "equal":
            return b"", upload
        end = classes
        if self.kind == "expertise":
            end = _LENGTH + int.from_bytes(upload[:_LENGTH], "little")
            if end > _LENGTH + entropy.max_bytes(most, 2**self.bits):
                raise WireError(f"votes of {end - _LENGTH} bytes for {most} rows at most")
        if len(upload) < max(end, _LENGTH):
            raise WireError("truncated upload: the votes are cut short")
        return upload[:end], upload[end:]

    def decode(self, claims: bytes, labels: SoftLabels) -> SoftLabels:
        """The labels with the votes that each row counts: one on average, `MOST` at most."""
        if self.kind == "equal":
            return labels
        if self.kind == "expertise":
            found = entropy.decode(claims[_LENGTH:], len(labels), 2**self.bits) + 1.0
        else:
            counts = np.frombuffer(claims, np.uint8).astype(np.float64)
            if not counts.any():
                raise WireError("a label histogram of a client without samples")
            found = np.maximum(find_expertise(labels.probs, counts), LEAST)
        votes = np.minimum(found / found.mean(), MOST) if len(found) else found
        return SoftLabels(labels.index, labels.probs, votes)


def find_expertise(probs: Array, label_counts: Array) -> Array:
    """w(x) = sum_c p(c | x) sqrt(n_c / n), between 0 and 1. [m]"""
    shares: Array = np.sqrt(label_counts / label_counts.sum())
    expertise: Array = probs @ shares
    return expertise
