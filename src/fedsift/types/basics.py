"""What everything else is made of: arrays, weights, an architecture, an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

Weights = dict[str, Tensor]  # a model's parameters and buffers, as `state_dict()` names them
Tree = dict[str, Any]  # nested dicts with tensors or arrays at the leaves: what a party remembers
Array = np.ndarray[Any, np.dtype[Any]]


class UserError(ValueError):
    """Something the user asked for cannot be done; the text says what to change."""


@dataclass(frozen=True)
class Model:
    """An architecture: equal fields, equal net. `factory(shape, classes, **options)` builds it."""

    name: str
    factory: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int
    options: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs {self.shape}, {self.classes} classes)"

    def build(self) -> nn.Module:
        return self.factory(self.shape, self.classes, **dict(self.options))
