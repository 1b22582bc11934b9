"""Where only soft labels travel down, the weights that students start from reach a client once:
with its first download. Where weights travel down they do so by themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedsift.algorithms import students
from fedsift.algorithms.weight_downlink import WeightDownlink, WeightsHeld
from fedsift.codecs import WEIGHT_CODECS, WireError
from fedsift.types import Client, Model, Round, Weights

CODEC = WEIGHT_CODECS["float32"]
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class FirstWeights:
    """The server's: the weights by architecture, and which clients have them."""

    weights: dict[str, Weights] = field(default_factory=dict)
    received: dict[int, bool] = field(default_factory=dict)

    def encode_for(self, cohort: Iterable[Client], r: Round) -> dict[int, bytes]:
        """What stands before each client's first download: a length and a message of weights."""
        if r.start is None:
            return {client.id: b"" for client in cohort}
        encoded = {name: CODEC.encode(state, r.number) for name, state in self.weights.items()}
        parts = {name: _LENGTH.pack(len(code)) + code for name, code in encoded.items()}
        return {
            c.id: b"" if c.id in self.received or not c.model.is_network else parts[c.model.name]
            for c in cohort
        }

    def add_receivers(self, clients: Iterable[int], r: Round) -> FirstWeights:
        """After a round: clients that were heard have them."""
        if r.start is None:
            return self
        return FirstWeights(self.weights, self.received | dict.fromkeys(clients, True))

    def forget(self, client: int) -> FirstWeights:
        return FirstWeights(self.weights, students.drop(self.received, client))


def split_download(model: Model, download: bytes, r: Round) -> tuple[Weights, bytes]:
    """A client's first download: the weights, and what comes after them."""
    if len(download) < _LENGTH.size:
        raise WireError("truncated download: the first weights are missing")
    end = _LENGTH.size + _LENGTH.unpack_from(download)[0]
    if len(download) < end:
        raise WireError("truncated download: the first weights are cut short")
    code = download[_LENGTH.size : end]
    weights, _ = WeightDownlink(CODEC).decode(WeightsHeld(), model, code, r)
    return weights, download[end:]
