"""What crosses, as digests: of every codec, of whole messages, and of the messages on Flower.

    python -m tests.helpers.layouts     # writes them anew, after a change of the protocol's number

Inputs are exact in binary and nothing is trained, so that every machine gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsift.codecs import Qsgd, Updates, soft_label_codec, weight_codec
from fedsift.codecs.estimates import ESTIMATE_CODECS
from fedsift.flower import messages
from fedsift.flower.messages import Answer, Call, Hello, Objection, Refusal
from fedsift.types import Fit, Link, SoftLabels, Weights
from tests.helpers.hostile_messages import CLASSES, list_systems, play

FILE = Path(__file__).with_name("layouts.json")
LABEL_CODECS = ("float32", "float16", "hard", "quantized(1)", "quantized(4)", "topk(3)")
DELTA = "delta(quantized(1))"
WEIGHT_CODECS = ("float32", "float16", "qsgd(4)", "updates(1)", "updates(4)")
RUN = "0123456789abcdef" * 2
FLOWER = (
    Hello(3, 2, "0.3.0", "e" * 8, "f" * 8, "mlp"),
    Call(RUN, 5, 4, b"call"),
    Answer(5, True, b"answer", 0.5),
    Refusal("no memory", True, 3),
    Objection("another public set"),
)


class Exact:
    """An engine without training: weights that grow with the epochs, and certain predictions."""

    def run(self, jobs: list[Any]) -> list[Any]:
        return [self._fit(job) if isinstance(job, Fit) else self._predict(job) for job in jobs]

    def _fit(self, job: Fit) -> Weights:
        return {name: _grid(value, len(job.data) + job.epoch) for name, value in job.state.items()}

    def _predict(self, job: Any) -> Any:
        rows = np.arange(len(job.samples))
        likeliest = (3 * rows + rows // CLASSES) % CLASSES
        return 200 * np.eye(CLASSES, dtype=np.float32)[likeliest]


def _grid(value: torch.Tensor, shift: int) -> torch.Tensor:
    """Multiples of 1/64 in the shape of a tensor; counters stay."""
    if not value.is_floating_point():
        return value
    steps = (torch.arange(value.numel()) + shift) % 17 - 8
    return (steps / 64).reshape(value.shape).to(value.dtype)


def list_bytes() -> Iterator[tuple[str, bytes]]:
    yield from _list_codecs()
    for name, system in list_systems().items():
        scene = play(system, 1, engine=Exact())
        yield f"upload, {name}", scene.uploads[1]
        yield f"download, {name}", scene.downloads[1]
    for message in FLOWER:
        yield f"Flower, {type(message).__name__}", _describe(messages.write(message))
    yield "Flower, routes", " ".join((messages.HELLO, messages.TURN, messages.REFUSED)).encode()


def _list_codecs() -> Iterator[tuple[str, bytes]]:
    rows = np.array([[8, 4, 4, 0], [16, 0, 0, 0], [2, 2, 4, 8]], np.float32) / 16
    labels, link = SoftLabels(np.array([1, 5, 30]), rows), Link(2, 40, 4)
    for name in (*LABEL_CODECS, DELTA):
        yield f"labels, {name}", soft_label_codec(name).encode(labels, link)
    base = {"w": _grid(torch.zeros(16, 40), 0), "b": _grid(torch.zeros(5), 0)}
    state = {name: _grid(value, 1) for name, value in base.items()}
    for name in WEIGHT_CODECS:
        codec = weight_codec(name)
        if isinstance(codec, Qsgd | Updates):
            yield f"weights, {name}", codec.encode(state, 2, 40, base, (7,))
        else:
            yield f"weights, {name}", codec.encode(state, 2, 40)
    for name, estimates in ESTIMATE_CODECS.items():
        yield f"estimates, {name}", estimates.encode(rows, 2)


def _describe(records: Any) -> bytes:
    """Names, types and values of all records."""
    values = {name: dict(record) for name, record in records.config_records.items()}
    arrays = {
        f"{name}/{key}": [array.dtype, list(array.shape), array.stype, array.data.hex()]
        for name, record in records.array_records.items()
        for key, array in record.items()
    }
    return json.dumps([values, arrays], sort_keys=True).encode()


def find_digests() -> dict[str, str]:
    return {name: hashlib.sha256(code).hexdigest()[:16] for name, code in list_bytes()}


if __name__ == "__main__":
    found = {"protocol": messages.PROTOCOL, "digests": find_digests()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
