"""Hostile headers of safetensors: names, types and keys, which an attacker writes as he likes.

The texts are written here one after the other, each behind its length. So any bytes are some
texts, and the header around them is right JSON of the right length, in a sealed message.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import torch

from fedsift.codecs import WEIGHT_CODECS, wire
from tests.helpers.hostile_messages import Field, Kind, counted, split_counted

CODEC, ROUND = WEIGHT_CODECS["float32"], 3
STATE = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
DATA = struct.pack("<2fq", 1, 2, 7)
TEXTS = ("w", "dtype", "F32", "n", "dtype", "I64", "by", "fedsift")  # the last two: metadata
FORGED = "X`\n2026-07-01T00:00:00.000+00:00 INFO fedsift: round 7 done\x1b[31m\u2028UserError: stop"
COPIES = 24  # lengths of the texts: JSON writes six letters for one, and they are copied


def list_kinds() -> dict[str, Kind]:
    others = tuple(pack((*TEXTS[:at], FORGED, *TEXTS[at + 1 :])) for at in range(len(TEXTS)))
    return {"header of weights": Kind(read, check, pack(TEXTS), split, others, COPIES)}


def pack(texts: tuple[str, ...]) -> bytes:
    return b"".join(counted(4)(text.encode()) for text in texts)


def split_texts(message: bytes) -> list[bytes]:
    """The first ones: there is no room for more."""
    texts: list[bytes] = []
    while message and len(texts) < len(TEXTS):
        one, message = split_counted(message, 4)
        texts.append(one)
    return texts


def split(message: bytes) -> list[Field]:
    return [Field((text,), counted(4)) for text in split_texts(message)]


def read(message: bytes) -> Any:
    texts = (str(text, "utf-8", "replace") for text in split_texts(message))
    return CODEC.decode(make_message(*texts), ROUND, STATE)


def make_message(
    w: str = "w",
    type_w: str = "dtype",
    float32: str = "F32",
    n: str = "n",
    type_n: str = "dtype",
    int64: str = "I64",
    key: str = "by",
    value: str = "fedsift",
) -> bytes:
    """A sealed message with these texts in its header."""
    header = {
        w: {type_w: float32, "shape": [2], "data_offsets": [0, 8]},
        n: {type_n: int64, "shape": [], "data_offsets": [8, 16]},
        "__metadata__": {key: value},
    }
    code = json.dumps(header, ensure_ascii=False).encode()
    payload = struct.pack("<IQ", 9, len(code)) + code + DATA
    return wire.seal(wire.WEIGHTS, CODEC.id, ROUND, payload)


def check(found: Any) -> None:
    state, samples = found
    assert list(state) == list(STATE) and samples == 9
    assert all(torch.equal(state[name], STATE[name]) for name in STATE)
