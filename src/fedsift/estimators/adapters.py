"""How an estimator is trained on target distributions, and how its answers become columns.

A target row is a distribution over the classes, times a weight. It becomes one row per class with a
share above 0, and the share is the row's `sample_weight`. A hard label is one row of weight 1.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsift.estimators.names import is_estimator
from fedsift.types import Array, ModelFailure

SUM_OFF = 1e-3  # how far a row of probabilities may be from 1
BELOW_0 = -1e-6  # rounding


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained estimator and the classes it has seen; with one class there is nothing to train."""

    estimator: Any  # None where only one class was seen
    seen: Array  # [k] int64, ascending


def spread_targets(targets: Array) -> tuple[Array, Array, Array]:
    """[n, C] -> the row, the class and the weight of every share above 0, row by row."""
    rows, classes = np.nonzero(targets > 0)
    return rows, classes, targets[rows, classes].astype(np.float64)


def train(template: Any, x: Array, targets: Array, seed: int) -> Fitted:
    """A trained estimator; `template` is a new one, which is used up.

    x [n, F], targets [n, C]. What fails is a ModelFailure that names the model.
    """
    rows, classes, weights = spread_targets(targets)
    if not len(rows):
        raise ModelFailure("there is no sample to train on")
    seen = np.unique(classes)
    if len(seen) == 1:
        return Fitted(None, seen)
    prepare(template, seed)
    y = np.searchsorted(seen, classes) if _counts_classes(template) else classes
    weighted = {} if (weights == 1).all() else {_weight_keyword(template): weights}
    try:
        template.fit(x[rows], y, **weighted)
    except Exception as error:  # of a library or a user: this client is missing, the others go on
        raise _failure(template, "fit", error) from error
    return Fitted(template, seen)


def predict(fitted: Fitted, x: Array, classes: int) -> Array:
    """Checked probabilities, float64 [n, C]; classes that were never seen have probability 0."""
    if fitted.estimator is None:
        probs = np.zeros((len(x), classes))
        probs[:, fitted.seen] = 1
        return probs
    try:
        found = np.asarray(fitted.estimator.predict_proba(x), np.float64)
    except Exception as error:
        raise _failure(fitted.estimator, "predict_proba", error) from error
    return place_columns(found, _columns(fitted, found, classes), len(x), classes)


def place_columns(found: Array, columns: Array, rows: int, classes: int) -> Array:
    """Each column of an answer in the column of its class, once the answer is checked."""
    check_rows(found, rows, len(columns))
    probs = np.zeros((rows, classes))
    probs[:, columns] = np.maximum(found, 0)
    return probs / probs.sum(1, keepdims=True)


def check_rows(found: Array, rows: int, columns: int) -> None:
    """An answer is `rows` distributions over `columns` classes."""
    if found.shape != (rows, columns):
        raise ModelFailure(f"it gives {found.shape} for {rows} samples, not ({rows}, {columns})")
    if not np.isfinite(found).all():
        raise ModelFailure("it gives probabilities that are not finite")
    if (found < BELOW_0).any():
        raise ModelFailure("it gives probabilities below 0")
    off = np.abs(found.sum(1) - 1)
    if (off > SUM_OFF).any():
        worst = found[off.argmax()].sum()
        raise ModelFailure(f"it gives rows that do not sum to 1, but for example to {worst:.4g}")


def _columns(fitted: Fitted, found: Array, classes: int) -> Array:
    """The class of each column: as the estimator says, or all classes, or those seen."""
    estimator, seen = fitted.estimator, fitted.seen
    if _counts_classes(estimator):
        return seen
    told = getattr(estimator, "classes_", None)
    if told is None:
        return np.arange(classes) if found.ndim == 2 and found.shape[1] == classes else seen
    try:
        columns = np.asarray(told).astype(np.int64)
    except (TypeError, ValueError):
        columns = np.empty(0, np.int64)
    distinct = columns.ndim == 1 and len(np.unique(columns)) == len(columns)
    if not distinct or not len(columns) or columns.min() < 0 or columns.max() >= classes:
        raise ModelFailure(f"its classes_ are not classes from 0 to {classes - 1}")
    return columns


def _counts_classes(estimator: Any) -> bool:
    """Whether its labels must be 0, 1, ... without gaps, as those of XGBoost."""
    return library_of(estimator) == "xgboost"


def library_of(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def prepare(estimator: Any, seed: int) -> None:
    """One thread, and its randomness from the seed, unless the user has set it; no chatter."""
    params = estimator.get_params() if hasattr(estimator, "get_params") else vars(estimator)
    library = library_of(estimator)
    changes: dict[str, Any] = {"lightgbm": {"verbosity": -1}}.get(library, {})
    for name, value in params.items():
        last = name.rpartition("__")[2]
        if last == "random_state" and value is None:
            changes[name] = seed
        if last == "n_jobs" and (value is not None or library in ("xgboost", "lightgbm")):
            changes[name] = 1  # elsewhere, None is one thread
    if hasattr(estimator, "set_params"):
        estimator.set_params(**changes)
    else:
        vars(estimator).update(changes)


def takes_weights(estimator: Any) -> bool:
    """Whether `fit` takes the weight of each sample."""
    last = estimator.steps[-1][1] if _is_pipeline(estimator) else estimator
    parameters = inspect.signature(last.fit).parameters.values()
    return any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)


def _weight_keyword(estimator: Any) -> str:
    if not takes_weights(estimator):
        raise ModelFailure(
            f"{type(estimator).__name__}.fit takes no sample_weight, so it cannot learn from soft"
            " labels; set download=weights, or choose another model"
        )
    return (
        f"{estimator.steps[-1][0]}__sample_weight" if _is_pipeline(estimator) else "sample_weight"
    )


def _is_pipeline(estimator: Any) -> bool:
    return library_of(estimator) == "sklearn" and hasattr(estimator, "steps")


def _failure(estimator: Any, method: str, error: Exception) -> ModelFailure:
    if isinstance(error, ModelFailure):
        return error
    what = f"{type(estimator).__name__}.{method} raised {type(error).__name__}"
    return ModelFailure(what, " ".join(str(error).split())[:300])


def check_estimator(estimator: Any, name: str) -> str | None:
    """What is wrong with what a factory made, in words."""
    if is_estimator(estimator):
        return None
    return f"model {name!r} makes a {type(estimator).__name__} without fit and predict_proba"
