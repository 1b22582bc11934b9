"""How good the models are, on held-out samples that no party trains on; and, in a simulation, how
good the soft labels are that taught them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsift.numerics import softmax
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
    quality: Quality | None = None  # of the models that are reported


LAST = 5  # a run's accuracy is the mean over its last five rounds, never its best


def evaluate(
    models: Mapping[str, tuple[Model, Weights]], test: Labelled, reported: Collection[str] = ()
) -> Turn[Scores]:
    """A turn like any other: asks for predictions, returns the Scores.

    A model that fails has no score.

    reported: those of the models whose quality is described
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
    reports = [logits for name, logits in told.items() if name in reported]
    quality = measure_quality(reports, test.labels, test.classes)
    return Scores(accuracies, disagreement(clients, test.classes), frozenset(bad), quality)


def disagreement(predictions: Sequence[Array], classes: int) -> float | None:
    """The chance that two different models class a test sample differently; None for one model."""
    count = len(predictions)
    if count < 2:
        return None
    samples = len(predictions[0])
    places = np.arange(samples) * classes + np.array(predictions)  # [models, n]
    votes = np.bincount(places.ravel(), minlength=samples * classes).reshape(samples, classes)
    same = (votes * (votes - 1)).sum(1) / (count * (count - 1))
    return float(1 - same.mean())


def accuracy(logits: Array, labels: Array) -> float:
    return float(np.mean(logits.argmax(1) == labels))


MOST_CONFUSED = 50  # classes of a confusion matrix
MOST_CLASSES = 1000  # whose accuracies are listed
BINS = 15  # of confidence


@dataclass(frozen=True)
class Quality:
    """More than the share of right answers: means over models, on the same samples."""

    # by class: the share of its samples that are right; None: there are none of it
    class_accuracy: tuple[float | None, ...] | None
    confusion: tuple[tuple[int, ...], ...] | None  # [true][predicted], added up over the models
    macro_f1: float  # mean over the classes that occur
    calibration_error: float  # expected, over bins of equal width
    auc: float | None  # area under the ROC curve, of two classes


def measure_quality(answers: Sequence[Array], labels: Array, classes: int) -> Quality | None:
    """From logits [n, C] of each model; None where no model can predict."""
    usable = [z for z in answers if not np.isnan(z).any() and np.isfinite(z.max(1)).all()]
    if not usable:
        return None
    predicted = [z.argmax(1) for z in usable]
    probs = [softmax(z, 1.0) for z in usable]
    f1 = [macro_f1(found, labels, classes) for found in predicted]
    errors = [calibration_error(p, labels) for p in probs]
    areas = [
        area for p in probs if classes == 2 and (area := roc_area(p[:, 1], labels)) is not None
    ]
    return Quality(
        _class_accuracy(predicted, labels, classes) if classes <= MOST_CLASSES else None,
        _confusion(predicted, labels, classes) if classes <= MOST_CONFUSED else None,
        float(np.mean(f1)),
        float(np.mean(errors)),
        float(np.mean(areas)) if areas else None,
    )


def macro_f1(predicted: Array, labels: Array, classes: int) -> float:
    """The mean of 2 TP / (predicted + true) over the classes that occur on either side."""
    right = np.bincount(labels[predicted == labels], minlength=classes)
    both = np.bincount(predicted, minlength=classes) + np.bincount(labels, minlength=classes)
    occurs = both > 0
    return float(np.mean(2 * right[occurs] / both[occurs]))


def calibration_error(probs: Array, labels: Array) -> float:
    """The expected calibration error (Guo et al. 2017): how far the confidence in the predicted
    class is from the share of right ones, bin by bin, weighted by samples; probs [n, C].
    """
    confidence = probs.max(1)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    excess = confidence - (probs.argmax(1) == labels)
    return float(np.abs(np.bincount(bins, excess, BINS)).sum() / len(labels))


def roc_area(scores: Array, labels: Array) -> float | None:
    """The chance that a sample of class 1 has a higher score than one of class 0, ties half; None
    where a class has no samples.
    """
    ones = int((labels == 1).sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place.reshape(-1)]  # ties share their mean
    return float((ranks[labels == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _class_accuracy(
    predicted: Sequence[Array], labels: Array, classes: int
) -> tuple[float | None, ...]:
    counts = np.bincount(labels, minlength=classes) * len(predicted)
    right = sum(np.bincount(labels[found == labels], minlength=classes) for found in predicted)
    return tuple(
        float(r / n) if n else None for r, n in zip(np.asarray(right), counts, strict=True)
    )


def _confusion(
    predicted: Sequence[Array], labels: Array, classes: int
) -> tuple[tuple[int, ...], ...]:
    places = np.concatenate([labels * classes + found for found in predicted])
    counts = np.bincount(places, minlength=classes**2).reshape(classes, classes)
    return tuple(map(tuple, counts.tolist()))


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


def has_stalled(accuracies: Sequence[float], patience: int | None) -> bool:
    """Whether as many rounds as `patience` have passed since the best one, of equals the first."""
    if patience is None or not accuracies:
        return False
    return len(accuracies) - 1 - int(np.argmax(accuracies)) >= patience


def describe_average(rounds: int) -> str:
    """In words, what `settled` is the mean of, after so many rounds."""
    if rounds > LAST:
        return "mean of the last five rounds"
    return f"mean of all {rounds} rounds" if rounds > 1 else "of the only round"


def average_last(accuracies: Sequence[float]) -> float:
    """The mean over the last five rounds (or all, if there were fewer)."""
    return float(np.mean(accuracies[-LAST:])) if accuracies else float("nan")
