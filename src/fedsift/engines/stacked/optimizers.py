"""SGD, Adam and AdamW on one flat [M, P] matrix, a row a model, as torch.optim has them for one
model.

`t` counts steps from 0; since every model's steps are consecutive, it is the same for all that are
still training.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fedsift.types import Array, Recipe

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Sgd:
    def __init__(self, recipe: Recipe, weights: Tensor) -> None:
        self._recipe = recipe
        self._velocity = torch.zeros_like(weights) if recipe.momentum else None

    def step(
        self, w: Tensor, g: Tensor, rate: Tensor, t: int | Tensor, members: slice | Tensor
    ) -> None:
        """w [A, P]: `members` of the rows; g their gradient, which is used up; rate [A, 1]."""
        recipe = self._recipe
        if recipe.weight_decay:
            g.add_(w, alpha=recipe.weight_decay)
        if self._velocity is not None:
            velocity = self._velocity[members].mul_(recipe.momentum).add_(g)
            if not isinstance(members, slice):  # not a view, then
                self._velocity[members] = velocity
            g = g.add_(velocity, alpha=recipe.momentum) if recipe.nesterov else velocity
        w.addcmul_(g, rate, value=-1)


class Adam:
    """Adam or, by recipe, AdamW: torch's fused step over all rows, or each row if rates differ."""

    def __init__(self, recipe: Recipe, weights: Tensor) -> None:
        self._settings = {
            "beta1": BETA1,
            "beta2": BETA2,
            "eps": EPS,
            "weight_decay": recipe.weight_decay,
        }
        self._settings |= {"amsgrad": False, "maximize": False}
        self._step: Any = torch._fused_adamw_ if recipe.optimizer == "adamw" else torch._fused_adam_
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(
        self, w: Tensor, g: Tensor, rate: Tensor, t: int | Tensor, members: slice | Tensor
    ) -> None:
        """As for `Sgd`, but the rates are on the host, where they are needed as numbers; t may be
        a float on the device. So nothing waits for the device."""
        mean, square = self.mean[members], self.square[members]
        rates = rate.flatten().tolist()
        equal = len(set(rates)) == 1
        count = t + 1 if isinstance(t, Tensor) else torch.tensor(float(t + 1), device=w.device)
        for i, lr in enumerate(rates[:1] if equal else rates):
            rows = [[matrix if equal else matrix[i]] for matrix in (w, g, mean, square)]
            self._step(*rows, [], [count], lr=lr, **self._settings)
        if not isinstance(members, slice):  # not views, then
            self.mean[members], self.square[members] = mean, square


def correction(t: int) -> tuple[float, float]:
    """The divisors of Adam's mean and root mean square after step t, as both start at 0."""
    return 1 - BETA1 ** (t + 1), sqrt(1 - BETA2 ** (t + 1))


def place_rates(rule: Sgd | Adam, rates: Array, here: torch.device) -> Tensor:
    """Step sizes [T, M] where the rule wants them, for weights that are here."""
    return torch.from_numpy(rates).to("cpu" if isinstance(rule, Adam) else here)


def make_optimizer(recipe: Recipe, weights: Tensor) -> Sgd | Adam:
    return Sgd(recipe, weights) if recipe.optimizer == "sgd" else Adam(recipe, weights)
