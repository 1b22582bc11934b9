"""Samples and labels: one store of values, many views of it.

Shapes in comments: n samples, m chosen samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsift.types.basics import Array


@dataclass(frozen=True, eq=False)
class Store:
    """Raw values kept once, uint8 if they came as uint8; normalised only when a batch is taken.

    Where there is a vocabulary, values are token ids, and stay whole numbers.
    """

    values: Tensor  # [S, channels, height, width], [S, features], [S, steps, features], [S, tokens]
    mean: Tensor  # [channels, 1, 1] or [features]
    std: Tensor  # of the shape of `mean`
    vocabulary: int | None = None  # ids are below this

    def __repr__(self) -> str:
        values = self.values
        kind = str(values.dtype).removeprefix("torch.")
        return f"Store({len(values)} samples of shape {tuple(values.shape[1:])}, {kind})"

    def normalise(self, values: Tensor) -> Tensor:
        if self.vocabulary is not None:
            return values.long()
        return (values.float() - self.mean.to(values.device)) / self.std.to(values.device)


@dataclass(frozen=True, eq=False)
class Samples:
    """A view: some rows of a store. It carries no labels, so the public set cannot leak any."""

    store: Store  # the values, shared by all views of them
    rows: Array  # [n] int64

    def __repr__(self) -> str:
        return f"Samples({len(self)} of shape {self.shape})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, positions: Array) -> Samples:
        return Samples(self.store, self.rows[positions])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.store.values.shape[1:])

    @property
    def vocabulary(self) -> int | None:
        return self.store.vocabulary

    def tensor(self) -> Tensor:
        """The samples themselves, normalised: float32 [n, ...]; token ids are int64."""
        return self.store.normalise(self.store.values[torch.from_numpy(self.rows)])


@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples with a target distribution each; a hard label is a one-hot row: one loss for both."""

    samples: Samples  # the inputs, [n]
    targets: Tensor  # [n, C] float32

    def __repr__(self) -> str:
        return f"Labelled({len(self)} of shape {self.samples.shape}, {self.classes} classes)"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, positions: Array) -> Labelled:
        targets = torch.from_numpy(self.targets.numpy()[positions])  # no threads for so little
        return Labelled(self.samples[positions], targets)

    @property
    def labels(self) -> Array:
        """The class of each sample, [n] int64."""
        return self.targets.argmax(1).numpy()

    @property
    def classes(self) -> int:
        return self.targets.shape[1]


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """Probability vectors on some public samples; `weight`: votes a row stands for (None: one)."""

    index: Array  # [m] int64, ascending, distinct: universal indexes into the public set
    probs: Array  # [m, C]
    weight: Array | None = None  # [m]

    def __repr__(self) -> str:
        votes = "" if self.weight is None else f", {self.weight.sum():g} votes"
        return f"SoftLabels({len(self)} samples, {self.probs.shape[-1]} classes{votes})"

    def __len__(self) -> int:
        return len(self.index)

    def keep(self, rows: Array) -> SoftLabels:
        """Some of the rows, by position or by a mask, with their votes."""
        weight = None if self.weight is None else self.weight[rows]
        return SoftLabels(self.index[rows], self.probs[rows], weight)

    def on(self, public: Samples) -> Labelled:
        return Labelled(public[self.index], torch.from_numpy(self.probs.astype(np.float32)))


@dataclass(frozen=True, eq=False)
class LabelSums:
    """Votes times soft labels, summed over clients, on some public samples; and the votes.

    Numbers are whole ticks: of 2^-32 in `high`, of 2^-64 in `low`, together the exact sum.
    """

    index: Array  # [m] int64, ascending, distinct
    high: Array  # [m, C + 1] float64; the last column is of the votes
    low: Array  # [m, C + 1] float64

    def __len__(self) -> int:
        return len(self.index)
