"""How good the models are, on test samples that no party trains on and nothing is chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.types import Array, Labelled, Model, Predict, Turn, Weights


@dataclass(frozen=True)
class Scores:
    accuracies: dict[str, float]
    disagreement: float | None  # between the clients' own models


LAST = 5  # a run's accuracy is the mean over its last five rounds, never its best


def evaluate(models: Mapping[str, tuple[Model, Weights]], test: Labelled) -> Turn[Scores]:
    """A turn like any other: asks for predictions, returns the Scores."""
    answers = yield [Predict(model, state, test.samples) for model, state in models.values()]
    accuracies = {
        name: accuracy(logits, test.labels) for name, logits in zip(models, answers, strict=True)
    }
    clients = [
        logits.argmax(1)
        for name, logits in zip(models, answers, strict=True)
        if name.startswith("client ")
    ]
    return Scores(accuracies, disagreement(clients, test.classes))


def disagreement(predictions: Sequence[Array], classes: int) -> float | None:
    """The chance that two different models class a test sample differently; None for one model."""
    count = len(predictions)
    if count < 2:
        return None
    votes = np.stack(
        [np.bincount(column, minlength=classes) for column in np.array(predictions).T]
    )  # [n, C]
    same = (votes * (votes - 1)).sum(1) / (count * (count - 1))
    return float(1 - same.mean())


def accuracy(logits: Array, labels: Array) -> float:
    return float(np.mean(logits.argmax(1) == labels))


def describe_average(rounds: int) -> str:
    """In words, what `settled` is the mean of, after so many rounds."""
    if rounds > LAST:
        return "mean of the last five rounds"
    return f"mean of all {rounds} rounds" if rounds > 1 else "of the only round"


def average_last(accuracies: Sequence[float]) -> float:
    """The mean over the last five rounds (or all, if there were fewer)."""
    return float(np.mean(accuracies[-LAST:])) if accuracies else float("nan")
