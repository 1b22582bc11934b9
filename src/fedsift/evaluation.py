"""How good the models are, on test samples that no party trains on and nothing is chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedsift.types import Array, Labelled, Model, Predict, State, Turn

LAST = 5  # a run's accuracy is the mean over its last five rounds, never its best


def evaluate(models: Mapping[str, tuple[Model, State]], test: Labelled) -> Turn:
    """A turn like any other: asks for predictions, returns {name: accuracy}."""
    answers = yield [Predict(model, state, test.samples) for model, state in models.values()]
    return {name: accuracy(logits, test.labels) for name, logits in zip(models, answers, strict=True)}


def accuracy(logits: Array, labels: Array) -> float:
    return float(np.mean(logits.argmax(1) == labels))


def settled(accuracies: Sequence[float]) -> float:
    """The mean over the last five rounds (or all, if there were fewer)."""
    return float(np.mean(accuracies[-LAST:])) if accuracies else float("nan")
