"""What a Recipe means: batches, step sizes, augmentation and the loss. Drawn from a key alone, outside the engines,
so that every engine trains on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsift import seeding
from fedsift.types import Array, Mistake, Recipe

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
PAD = 1 / 8  # a crop may move by an eighth of the side (4 pixels on 32x32)


def loss(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """-sum_n t^n log s^n, s = softmax(z / temperature), averaged over the batch. Targets are probabilities [b, C]."""
    return F.cross_entropy(logits / temperature if temperature != 1 else logits, targets)


def optimizer(recipe: Recipe, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """A fresh optimiser: no state is carried from one Fit to the next."""
    options = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": True}
    if recipe.optimizer == "sgd":
        options |= {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
    return OPTIMIZERS[recipe.optimizer](parameters, **options)


def step_size(recipe: Recipe, epoch: int) -> float:
    """The learning rate in an epoch counted from the first round: times `decay` at every milestone passed."""
    return float(recipe.lr * recipe.decay ** sum(epoch >= milestone for milestone in recipe.milestones))


def batches(recipe: Recipe, samples: int, key: seeding.Names) -> list[list[Array]]:
    """Per epoch, a fresh order cut into batches. A last batch of one is left out: it has no batch statistics."""
    generator = seeding.rng(*key, "batches")
    return [_cut(generator.permutation(samples), recipe.batch) for _ in range(recipe.epochs)]


def _cut(order: Array, size: int) -> list[Array]:
    pieces = [order[i : i + size] for i in range(0, len(order), size)]
    return pieces[:-1] if len(pieces) > 1 and len(pieces[-1]) == 1 < size else pieces


def augmentation(recipe: Recipe, samples: int, key: seeding.Names, shape: tuple[int, ...]) -> Array | None:
    """Per epoch and sample (down, right, mirrored), int64 [epochs, n, 3]; None when there is nothing to do."""
    if recipe.augment == "none":
        return None
    if len(shape) != 3:
        raise Mistake(f"augment = {recipe.augment!r} needs images, but samples have shape {shape}")
    generator = seeding.rng(*key, "augment")
    reach = _reach(shape)
    moves = generator.integers(-reach, reach + 1, (recipe.epochs, samples, 2))
    return np.concatenate([moves, generator.integers(0, 2, (recipe.epochs, samples, 1))], 2)


def augment(x: Tensor, moves: Tensor) -> Tensor:
    """Shift each image by (down, right), zeros coming in at the edge, then mirror where asked. x [b, c, h, w]."""
    b, _, h, w = x.shape
    reach = _reach(tuple(x.shape[1:]))
    padded = F.pad(x, (reach,) * 4)
    down, right, mirrored = moves.to(x.device).unbind(1)
    rows = torch.arange(h, device=x.device) + reach - down[:, None]  # [b, h]
    columns = torch.arange(w, device=x.device)
    columns = torch.where(mirrored[:, None] == 1, w - 1 - columns, columns) + reach - right[:, None]  # [b, w]
    return padded[torch.arange(b, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _reach(shape: tuple[int, ...]) -> int:
    return max(1, round(min(shape[1:]) * PAD))
