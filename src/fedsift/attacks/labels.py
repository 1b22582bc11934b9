"""Attacks on soft labels."""

from __future__ import annotations

from dataclasses import replace

from fedsift.attacks.scene import Scene, one_hot
from fedsift.types import LabelAnswer


def wrong(answer: LabelAnswer, scene: Scene) -> LabelAnswer:
    """Certain of the class after the likeliest one, on random rows, as many as are allowed."""
    samples, classes = answer.predicted.shape
    said = (answer.predicted.argmax(1) + 1) % classes
    return replace(answer, probs=one_hot(said, classes), rows=scene.own.permutation(samples))
