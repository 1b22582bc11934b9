"""Codecs: the only things that make and read the bytes that cross. Both halves of an agreement live in one object."""

import torch

from fedsift.codecs.softlabels import Float, SoftLabelCodec
from fedsift.codecs.weights import WeightCodec
from fedsift.codecs.wire import WireError

CODECS = {
    "float32": SoftLabelCodec(Float(1, "<f4")),
    "float16": SoftLabelCodec(Float(2, "<f2")),
}
WEIGHT_CODECS = {
    "float32": WeightCodec(1, torch.float32),
    "float16": WeightCodec(2, torch.float16),
}

__all__ = ["CODECS", "WEIGHT_CODECS", "Float", "SoftLabelCodec", "WeightCodec", "WireError"]
