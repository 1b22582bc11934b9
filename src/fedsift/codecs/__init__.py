"""Codecs: only they make and read bytes that cross. One object has both sides of an agreement."""

from __future__ import annotations

from typing import Any

import torch

from fedsift import registry
from fedsift.checks import check_call, check_members, describe
from fedsift.codecs.grid_updates import Updates
from fedsift.codecs.soft_labels import SoftLabelCodec
from fedsift.codecs.updates import Qsgd
from fedsift.codecs.values import Delta, Float, Hard, Quantized, TopK
from fedsift.codecs.weights import WeightCodec
from fedsift.codecs.wire import WireError
from fedsift.types import UserError


def quantized(bits: int = 4) -> SoftLabelCodec:
    """b bits per entry on the simplex grid, entropy-coded if shorter; 1 bit is the hard label.

    bits: of an entry, 1 to 8
    """
    return SoftLabelCodec(Quantized(bits))


def topk(k: int = 3) -> SoftLabelCodec:
    """The k largest probabilities as float16; the rest of a row is spread evenly.

    k: how many of a row, 1 to 63
    """
    return SoftLabelCodec(TopK(k))


def delta(inner: str | SoftLabelCodec = "quantized(1)") -> SoftLabelCodec:
    """Only rows changed since this client sent them, inner-coded; both ends keep the reference.

    inner: the codec of the changed rows, e.g. "quantized(1)" or "float16"
    """
    codec = soft_label_codec(inner)
    if not isinstance(codec, SoftLabelCodec):
        raise UserError(
            f"delta takes another code, e.g. delta(quantized(1)), not {describe(inner)}"
        )
    if codec.keeps_reference:
        raise UserError("delta of delta gains nothing; give delta a plain code")
    return SoftLabelCodec(Delta(codec.values))


CODECS: dict[str, Any] = {
    "float32": SoftLabelCodec(Float(1, "<f4")),
    "float16": SoftLabelCodec(Float(2, "<f2")),
    "hard": SoftLabelCodec(Hard()),
    "quantized": quantized,
    "topk": topk,
    "delta": delta,
}
WEIGHT_CODECS: dict[str, Any] = {
    "float32": WeightCodec(1, torch.float32),
    "float16": WeightCodec(2, torch.float16),
    "qsgd": Qsgd,
    "updates": Updates,
}


VALUES_MEMBERS = ("id", "pack", "unpack", "max_bytes")  # of `values.Values`
VALUES_CALLS = {
    "pack": ("probs", "known"),
    "unpack": ("code", "rows", "classes", "known"),
    "max_bytes": ("rows", "classes"),
}


def soft_label_codec(what: str | SoftLabelCodec) -> SoftLabelCodec:
    """By name, e.g. "float16", "quantized(4)", "delta(quantized(1))", or the codec itself.

    A plug-in may also be only the code of the values (see `values.Values`).
    """
    codec = registry.build(CODECS, "codec", what) if isinstance(what, str) else what
    if isinstance(codec, SoftLabelCodec):
        return codec
    name = f"codec {what!r}" if isinstance(what, str) else "codec"
    cure = f"a codec of soft labels has {', '.join(VALUES_MEMBERS)}"
    check_members(codec, VALUES_MEMBERS, name, cure)
    for method, arguments in VALUES_CALLS.items():
        check_call(getattr(codec, method), arguments, f"{name}: {method}")
    return SoftLabelCodec(codec)


def weight_codec(what: str | WeightCodec | Qsgd | Updates) -> WeightCodec | Qsgd | Updates:
    """Of uploads, by name, "float32", "qsgd(4)" or "updates(1)", or the codec itself."""
    codec = registry.build(WEIGHT_CODECS, "codec", what) if isinstance(what, str) else what
    if not isinstance(codec, WeightCodec | Qsgd | Updates):
        raise UserError(
            f"codec is {describe(what)}, which does not code weights; subclass"
            " fedsift.WeightCodec or use "
            f"{', '.join(WEIGHT_CODECS)}"
        )
    return codec


def down_weight_codec(what: str | WeightCodec | Updates) -> WeightCodec | Updates:
    """Of downloads, by name, "float32", "float16" or "updates(1)", or the codec itself."""
    codec = weight_codec(what)
    if isinstance(codec, Qsgd):
        raise UserError(
            f"{describe(what)} is for the uplink; on the downlink use float32, float16 or updates"
        )
    return codec


__all__ = [
    "CODECS",
    "WEIGHT_CODECS",
    "Delta",
    "Float",
    "Hard",
    "Qsgd",
    "Quantized",
    "SoftLabelCodec",
    "TopK",
    "Updates",
    "WeightCodec",
    "WireError",
    "delta",
    "down_weight_codec",
    "quantized",
    "soft_label_codec",
    "topk",
    "weight_codec",
]
