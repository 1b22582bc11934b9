"""How far models are from what they were trained on, once they are trained.

Engines train without ever computing a loss: they need its gradient alone. So a loss is computed
afterwards, once, from predictions on a few samples of a few models. That bounds what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedsift.types import Fit, Predict, Turn, Weights

MODELS = 32  # of a cohort, at most
SAMPLES = 32  # of a training set, at most, evenly spaced
LOCAL, DISTILL = "local_loss", "distill_loss"


class FitLog:
    """Keeps the last training of each kind that a turn asks for, and the weights it gave.

    Of networks alone: other models cost more to ask, and a black box would be sent private samples.
    """

    def __init__(self) -> None:
        self.fits: dict[tuple[str, str], tuple[Fit, Weights]] = {}

    def __call__(self, job: Any, answer: Any) -> None:
        if isinstance(job, Fit) and job.model.is_network and isinstance(answer, dict):
            self.fits[kind_of(job), job.model.name] = job, answer


def kind_of(job: Fit) -> str:
    """Training on a client's own labels is local; following those of others is distillation.

    The key says which. Where it does not, as in an algorithm of a user's own, hard labels are own.
    """
    if "local" in job.key or "distill" in job.key:
        return LOCAL if "local" in job.key else DISTILL
    return LOCAL if bool((job.data.targets.amax(1) == 1).all()) else DISTILL


def losses_turn(logs: Iterable[FitLog]) -> Turn[dict[str, float]]:
    """The mean loss by kind, over the models that were trained so."""
    kept = [(kind, *fit) for log in logs for (kind, _), fit in log.fits.items()]
    if not kept:
        return {}
    parts = [job.data[spread(len(job.data), SAMPLES)] for _, job, _ in kept]
    answers = yield [
        Predict(job.model, weights, part.samples)
        for (_, job, weights), part in zip(kept, parts, strict=True)
    ]
    found: dict[str, list[float]] = {}
    for (kind, job, _), part, logits in zip(kept, parts, answers, strict=True):
        loss = cross_entropy(logits, part.targets.numpy(), job.temperature)
        if np.isfinite(loss):
            found.setdefault(kind, []).append(loss)
    return {kind: float(np.mean(losses)) for kind, losses in sorted(found.items())}


def spread(count: int, most: int) -> Any:
    """At most so many positions, evenly spaced, [n]."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def cross_entropy(logits: Any, targets: Any, temperature: float = 1.0) -> float:
    """The mean of -sum_n t^n log s^n, s = softmax(z / temperature); logits and targets [n, C]."""
    z = logits.astype(np.float64) / temperature
    with np.errstate(all="ignore"):  # a model that has diverged has no loss
        z = z - z.max(1, keepdims=True)
        log_s = z - np.log(np.exp(z).sum(1, keepdims=True))
        return float(-(targets * log_s).sum(1).mean())
