"""How good the models are, on held-out samples that no party trains on; and, in a simulation, how
good the soft labels are that taught them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.types import (
    Array,
    Labelled,
    Model,
    ModelFailure,
    Predict,
    SoftLabels,
    Turn,
    Weights,
)


@dataclass(frozen=True)
class Scores:
    accuracies: dict[str, float]
    disagreement: float | None  # between the clients' own models
    not_finite: frozenset[str] = frozenset()  # models that cannot predict


LAST = 5  # a run's accuracy is the mean over its last five rounds, never its best


def evaluate(models: Mapping[str, tuple[Model, Weights]], test: Labelled) -> Turn[Scores]:
    """A turn like any other: asks for predictions, returns the Scores.

    A model that fails has no score.
    """
    answers = yield [Predict(model, state, test.samples) for model, state in models.values()]
    pairs = zip(models, answers, strict=True)
    told = {name: logits for name, logits in pairs if not isinstance(logits, ModelFailure)}
    accuracies = {name: accuracy(logits, test.labels) for name, logits in told.items()}
    clients = [logits.argmax(1) for name, logits in told.items() if name.startswith("client ")]
    bad = [
        name
        for name, logits in told.items()
        if models[name][0].is_network and not np.isfinite(logits).all()
    ]
    return Scores(accuracies, disagreement(clients, test.classes), frozenset(bad))


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


@dataclass(frozen=True)
class UploadedLabels:
    """The soft labels of all clients in a round, held against the true classes."""

    rows: int
    right: float  # the share of rows whose largest class is the true one
    samples: int  # public samples with at least one row
    votes: float  # rows per such sample


@dataclass(frozen=True)
class DistilledLabels:
    """The soft labels that a server taught its students, held against the true classes."""

    rows: int
    right: float  # the share of rows whose largest class is the true one
    fewest: int  # rows of the class that is the largest in the fewest


class LabelTally:
    """Scores uploads one at a time; `truth` [N] are the classes of the public samples."""

    def __init__(self, truth: Array) -> None:
        self._truth, self._votes, self._right = truth, np.zeros(len(truth), np.int64), 0

    def clear(self) -> None:
        self._votes[:], self._right = 0, 0

    def add(self, labels: SoftLabels) -> None:
        self._votes[labels.index] += 1
        self._right += _count_right(labels, self._truth)

    def scores(self) -> UploadedLabels | None:
        """None where nothing was uploaded."""
        rows, samples = int(self._votes.sum()), int(np.count_nonzero(self._votes))
        if not rows:
            return None
        return UploadedLabels(rows, self._right / rows, samples, rows / samples)


def score_distilled(labels: SoftLabels, truth: Array) -> DistilledLabels | None:
    """None where there are no labels."""
    if not len(labels):
        return None
    per_class = np.bincount(labels.probs.argmax(1), minlength=labels.probs.shape[1])
    right = _count_right(labels, truth) / len(labels)
    return DistilledLabels(len(labels), right, int(per_class.min()))


def _count_right(labels: SoftLabels, truth: Array) -> int:
    return int((labels.probs.argmax(1) == truth[labels.index]).sum())


def describe_average(rounds: int) -> str:
    """In words, what `settled` is the mean of, after so many rounds."""
    if rounds > LAST:
        return "mean of the last five rounds"
    return f"mean of all {rounds} rounds" if rounds > 1 else "of the only round"


def average_last(accuracies: Sequence[float]) -> float:
    """The mean over the last five rounds (or all, if there were fewer)."""
    return float(np.mean(accuracies[-LAST:])) if accuracies else float("nan")
