"""What everything else is made of: arrays, weights, an architecture, an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Weights = dict[str, Tensor]  # a model's parameters and buffers, as `state_dict()` names them
Tree = dict[str, Any]  # nested dicts with tensors or arrays at the leaves: what a party remembers
Array = np.ndarray[Any, np.dtype[Any]]


class UserError(ValueError):
    """Something the user asked for cannot be done; the text says what to change."""


class ModelFailure(Exception):
    """A client's model could not do its work; the client is then missing in the round.

    `what` says it without quoting data. The whole text may quote some.
    """

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what, self.detail = what, detail


NETWORK, ESTIMATOR, REMOTE = "network", "estimator", "remote"  # kinds of models


@dataclass(frozen=True)
class Model:
    """What a client trains or asks: equal fields, equal model.

    `factory(shape, classes, **options)` builds it: an nn.Module, an estimator with `fit` and
    `predict_proba`, or a black box that only answers.
    """

    name: str  # in tables, messages and run folders
    factory: Callable[..., Any]  # (shape, classes, **options) -> the model
    shape: tuple[int, ...]  # of one sample
    classes: int  # C
    options: tuple[tuple[str, Any], ...] = ()  # further arguments of the factory
    kind: str = NETWORK  # network, estimator or black box
    vocabulary: int | None = None  # inputs are token ids below this; None: they are numbers

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs {self.shape}, {self.classes} classes)"

    @property
    def is_network(self) -> bool:
        """Whether it has weights, which can travel. Any other model is trained anew each round."""
        return self.kind == NETWORK

    def example(self, count: int, seed: int | None = None) -> Tensor:
        """Inputs of the kind the network gets: zeros, or random ones from a seed."""
        shape, tokens = (count, *self.shape), self.vocabulary
        if seed is None:
            return torch.zeros(shape, dtype=torch.float32 if tokens is None else torch.long)
        generator = torch.Generator().manual_seed(seed)
        if tokens is None:
            return torch.randn(shape, generator=generator)
        return torch.randint(tokens, shape, generator=generator)

    def build(self) -> Any:
        return self.factory(self.shape, self.classes, **dict(self.options))
