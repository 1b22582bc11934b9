"""Weights that no honest training reaches are refused, finite or not.

Uploads far beyond what a network starts with make the next rounds useless: outputs overflow, or
weights do not fit the codec on the way down. The bounds do not grow with the rounds, so nobody can
move them. A test holds real trainings on the digits to a hundredth of them.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from fedsift.codecs import WireError
from fedsift.models import initial_state
from fedsift.types import Model, Weights

LARGEST = 10_000.0  # of a parameter, in units of the largest first value of its tensor, at least 1
LARGEST_MEAN = 1e6  # of a running mean; inputs are normalised
LARGEST_VARIANCE = 1e12
MOST_STEPS = 2**31  # a counter moves by in one round


def check_weights(weights: Weights, base: Weights, model: Model, seed: int) -> None:
    """Uploaded weights of a client that started from `base`; WireError if they are absurd."""
    limits = _find_limits(model, seed)
    for name, value in weights.items():
        if not value.numel():
            continue
        if not value.is_floating_point():
            _check_counter(name, value, base[name])
        elif float(value.abs().max()) > limits[name]:
            raise WireError(
                f"weights {name!r} up to {float(value.abs().max()):.3g}, where {limits[name]:.3g}"
                " is far beyond any training; if it is honest, lower local.lr"
            )


def _check_counter(name: str, value: torch.Tensor, base: torch.Tensor) -> None:
    if value.dtype == torch.bool:
        return
    moved = (value.double() - base.double()).abs().max()
    if float(moved) > MOST_STEPS:
        raise WireError(f"the counter {name!r} moves by {float(moved):.3g} in one round")


@lru_cache(maxsize=64)
def _find_limits(model: Model, seed: int) -> dict[str, float]:
    """The largest absolute value of each tensor."""
    return {
        name: _limit_of(name, value)
        for name, value in initial_state(model, seed).items()
        if value.is_floating_point()
    }


def _limit_of(name: str, first: torch.Tensor) -> float:
    largest = float(first.abs().max()) if first.numel() else 0.0
    kind = name.rpartition(".")[2]
    if kind == "running_mean":
        return max(LARGEST_MEAN, largest)
    if kind == "running_var":
        return max(LARGEST_VARIANCE, largest)
    return LARGEST * max(1.0, largest)
