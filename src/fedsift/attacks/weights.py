"""Attacks on weights. w are the weights that the client has trained, w0 those that it received.

Running statistics of batch norms and counters stay as they are, except where they are the point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsift.attacks.scene import WEIGHTS, Scene, resolve_inner
from fedsift.checks import check_number
from fedsift.codecs.weights import is_statistic
from fedsift.types import UserError, WeightAnswer

MOST_SAMPLES = 2**32 - 1  # that an upload can claim


@dataclass(frozen=True)
class _WithNumbers:
    """An attack on weights whose fields are numbers."""

    alters: ClassVar[str] = WEIGHTS

    def __post_init__(self) -> None:
        for one in fields(self):
            check_number(one.name, getattr(self, one.name))


@dataclass(frozen=True)
class SignFlip(_WithNumbers):
    """w0 - scale (w - w0): the update turned round.

    scale: how long the update is, in honest ones
    """

    scale: float = 1.0

    def __call__(self, answer: WeightAnswer, scene: Scene) -> WeightAnswer:
        return _move(answer, -self.scale)


@dataclass(frozen=True)
class Scale(_WithNumbers):
    """w0 + factor (w - w0): a longer update, or with a factor below 0 one turned round.

    factor: how long the update is, in honest ones
    """

    factor: float = 10.0

    def __call__(self, answer: WeightAnswer, scene: Scene) -> WeightAnswer:
        return _move(answer, self.factor)


@dataclass(frozen=True)
class Huge(_WithNumbers):
    """Every weight is one huge, finite value.

    value: which one
    """

    value: float = 1e20

    def __call__(self, answer: WeightAnswer, scene: Scene) -> WeightAnswer:
        return _change(answer, lambda name, w: torch.full_like(w, self.value))


@dataclass(frozen=True)
class NanVariance(_WithNumbers):
    """Running variances below 0, of which a model predicts NaN; for models with batch norms.

    value: which one; far enough below 0, the average is below 0 too
    """

    value: float = -1e6

    def __call__(self, answer: WeightAnswer, scene: Scene) -> WeightAnswer:
        names = [name for name in answer.weights if name.endswith("running_var")]
        if not names:
            raise UserError(
                "nan-variance needs a model with batch norms, such as resnet8 (fedsift ls models)"
            )
        below = {name: torch.full_like(answer.weights[name], self.value) for name in names}
        return replace(answer, weights=answer.weights | below)


class InflatedCounts:
    """Another attack, said to stand for 2^32 - 1 samples.

    inner: the attack on the weights
    """

    alters: ClassVar[str] = WEIGHTS

    def __init__(self, inner: Any = "sign-flip") -> None:
        self.inner = resolve_inner("inflated-counts", inner, WEIGHTS)

    def __call__(self, answer: WeightAnswer, scene: Scene) -> WeightAnswer:
        altered: WeightAnswer = self.inner(answer, scene)
        return replace(altered, samples=MOST_SAMPLES)


def _move(answer: WeightAnswer, factor: float) -> WeightAnswer:
    """w0 + factor (w - w0)"""
    return _change(answer, lambda name, w: torch.lerp(answer.received[name], w, factor))


def _change(answer: WeightAnswer, change: Callable[[str, Tensor], Tensor]) -> WeightAnswer:
    """The answer with every trained parameter changed."""
    changed = {
        name: change(name, w)
        for name, w in answer.weights.items()
        if w.is_floating_point() and not is_statistic(name)
    }
    return replace(answer, weights=answer.weights | changed)
